"""The seam between the KV link and what moves the bytes.

A transport has a door at the token machine (a listening socket where a peer shows the secret it was
offered), a `Sink` behind it, and a `Source` at the prompt machine. Another transport is a class with these
three and an entry in `runtime.kv_link.transports`; one whose data does not go through a socket uses the
door for its own rendezvous, and its end as news of the peer.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.kv_link.layout import Layout
from runtime.kv_link.ledger import Ledger
from runtime.kv_link.messages import Armed, Sealed
from runtime.kv_link.pool import Pool
from runtime.kv_link.runs import Run
from runtime.kv_link.tickets import Evidence, Ticket


class TransportError(Exception):
    """A transport cannot be had, or broke; the message is a sentence for a person."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a machine is: what doors need to know."""

    name: str
    pool: Pool
    ledger: Ledger
    data_host: str
    run_dir: Path | None


@dataclass(frozen=True, slots=True)
class SinkEvents:
    """Called on the loop's thread. `signalled`: the word of a ticket (by epoch) was posted. `quiet`: nothing
    is being written for a dismissed ticket any more. `lost`: the data connection ended, writers may live.
    `gone`: it ended and no writer can touch anything any more."""

    signalled: Callable[[int], None]
    quiet: Callable[[int], None]
    lost: Callable[[str], None]
    gone: Callable[[str], None]


class Sink(Protocol):
    """One peer's way into our memory, at the token machine. Used on the loop's thread."""

    name: str

    def admit(self, ticket: Ticket) -> None:
        """Puts for this ticket are welcome from now on."""

    def settled(self, ticket: Ticket) -> bool:
        """Whether the signal, if it ever came, must be here by now, given that the doorbell is."""

    def evidence(self, ticket: Ticket) -> Evidence:
        """What came for a ticket."""

    def dismiss(self, ticket: Ticket) -> bool:
        """No more puts for this ticket are taken. True if none is being written now, else `quiet` follows."""

    def force(self) -> bool:
        """Make every writer unable to write, `gone` follows; False if this transport has no such power."""

    def close(self) -> None:
        """Give everything back; nothing is called afterwards."""


class Source(Protocol):
    """A prompt machine's way into one peer's memory. Used on one thread, save for `cut`."""

    name: str

    def put(self, ticket: Armed, layer: int, runs: Sequence[Run]) -> None:
        """Copy blocks to the peer. When it returns, the source blocks are no longer read."""

    def signal(self, ticket: Armed, puts: int) -> None:
        """Post the ticket's slot behind all its puts."""

    def cut(self) -> None:
        """Make a blocked `put` fail soon; callable from any thread."""

    def close(self) -> None:
        """Let go of the peer's memory, and tell it so where it needs to know."""


class Transport(Protocol):
    """A way for bytes from one machine's pool into another's."""

    name: str
    needs_same_host: bool

    def bind(self, place: Place) -> tuple[socket.socket, str] | None:
        """A listening socket and the address to offer; None if this machine cannot take puts this way.
        Raises TransportError."""

    def unbind(self, address: str) -> None:
        """The socket was closed; remove what it left in the file system, if anything."""

    def serve(self, sock: socket.socket, place: Place, tickets: Iterable[Ticket], events: SinkEvents) -> Sink:
        """Welcome a peer that showed the secret; `tickets` are admitted first. Owns the (non-blocking)
        socket, unless it raises TransportError: then the peer is told why and may try another way."""

    def connect(self, address: str, seconds: float) -> socket.socket:
        """A connected socket with a timeout. Raises OSError."""

    def open(self, sock: socket.socket, pool: Pool, peer: Layout, slots: int) -> Source:
        """The secret was sent on this socket: take the welcome. Owns the socket unless it raises
        TransportError or OSError."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and sizes that no setting needs to touch.

    fence_after: how long a peer may take to drain before it is fenced by force. open_within: for a data
    connection. retry_least, retry_most: bounds of the backoff between calls to a machine that did not
    answer. put_bytes: how much one put may hold, so that stopping is quick. quarantine: the share of the
    pool's blocks that may be quarantined before no more tickets are given out."""

    fence_after: float = 2.0
    open_within: float = 5.0
    retry_least: float = 0.1
    retry_most: float = 5.0
    put_bytes: int = 4 * 2**20
    quarantine: float = 0.25


_Put = tuple[int, Sequence[Run]]


@dataclass(frozen=True, slots=True)
class Faults:
    """Where tests make things go wrong; in service these do nothing.

    put: called on the sender's thread with (transfer, layer, runs) right before the bytes move, when nothing
    is checked any more; what it returns is put instead. signal: what to post in place of (ticket, puts).
    doorbell: what to send in place of the seal."""

    put: Callable[[str, int, Sequence[Run]], Iterable[_Put]] = lambda transfer, layer, runs: ((layer, runs),)
    signal: Callable[[Armed, int], Iterable[tuple[Armed, int]]] = lambda ticket, puts: ((ticket, puts),)
    doorbell: Callable[[Sealed], Iterable[Sealed]] = lambda seal: (seal,)
