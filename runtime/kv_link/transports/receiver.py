"""The receiving thread of the tcp transport: nothing is written before it was checked.

Each put says which ticket, layer and blocks it is for. A put for a ticket that is not admitted (any more) is
read and thrown away: it lost a race with a revocation. A put for blocks that are not the ticket's, or that
came already, is no race: the connection is dropped.
"""

import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from runtime.kv_link.ledger import Ledger, signal
from runtime.kv_link.pool import Pool
from runtime.kv_link.tickets import Ticket
from runtime.kv_link.transports import frames

_DISCARD_BYTES = 256 * 1024
_log = logging.getLogger(__name__)


class BadPut(Exception):
    """The peer put something that no ticket allows."""


@dataclass(slots=True, eq=False)
class Admitted:
    """A ticket as the receiver sees it: where its puts may go and what came."""

    epoch: int
    slot: int
    blocks: frozenset[int]
    puts: int = 0
    bytes: int = 0
    signalled: bool = False


@dataclass(frozen=True, slots=True)
class ReceiverEvents:
    """Called on the receiver's thread."""

    signalled: Callable[[int], None]
    quiet: Callable[[int], None]
    gone: Callable[[str], None]


class Receiver(threading.Thread):
    """Owns a data connection from one peer. `cut` ends it; once it has ended nothing is written any more."""

    def __init__(self, sock: socket.socket, pool: Pool, ledger: Ledger, events: ReceiverEvents) -> None:
        super().__init__(name="kv-receiver", daemon=True)
        self._sock = sock
        self._pool = pool
        self._ledger = ledger
        self._events = events
        self._lock = threading.Lock()
        self._admitted: dict[int, Admitted] = {}
        self._writing: Admitted | None = None
        self._scratch = memoryview(bytearray(_DISCARD_BYTES))
        self._table = memoryview(bytearray(frames.RUN.size * frames.MOST_RUNS))

    # ---- the loop's side

    @property
    def admitted(self) -> int:
        return len(self._admitted)

    def admit(self, ticket: Ticket) -> None:
        with self._lock:
            self._admitted[ticket.epoch] = Admitted(ticket.epoch, ticket.slot, frozenset(ticket.blocks))

    def seen(self, epoch: int) -> Admitted | None:
        with self._lock:
            return self._admitted.get(epoch)

    def dismiss(self, epoch: int) -> bool:
        """Later puts are thrown away. False if one is being written now: `quiet` follows its end."""
        with self._lock:
            dismissed = self._admitted.pop(epoch, None)
            return dismissed is None or self._writing is not dismissed

    def cut(self) -> None:
        """End the connection from any thread; `gone` follows."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the peer was quicker

    # ---- the thread

    def run(self) -> None:
        reason = "the peer closed the data connection"
        header = memoryview(bytearray(frames.HEADER.size))
        try:
            while True:
                frames.receive_into(self._sock, [header])
                self._frame(*frames.HEADER.unpack(header))
        except EOFError:
            pass
        except OSError as error:
            reason = f"the data connection broke: {error.strerror}"
        except BadPut as error:
            reason = str(error)
            _log.error("a peer's data connection was dropped: %s", error)
        finally:
            self._sock.close()
            self._events.gone(reason)

    def _frame(self, kind: int, layer: int, epoch: int, slot: int, number: int) -> None:
        with self._lock:
            ticket = self._admitted.get(epoch)
            if ticket and ticket.slot != slot:
                raise BadPut(f"slot {slot} does not belong to the ticket that was named")
            self._writing = ticket
        if kind == frames.PUT:
            self._put(ticket, layer, number)
        elif kind == frames.SIGNAL:
            self._signal(ticket, number)
        else:
            raise BadPut(f"frame kind {kind} is not in the protocol")
        self._wrote(ticket)

    def _wrote(self, ticket: Admitted | None) -> None:
        with self._lock:
            self._writing = None
            dismissed = ticket is not None and self._admitted.get(ticket.epoch) is not ticket
        if ticket and dismissed:
            self._events.quiet(ticket.epoch)

    def _put(self, ticket: Admitted | None, layer: int, number: int) -> None:
        runs = self._runs(number)
        if ticket is None:
            self._discard(sum(count for _, count in runs) * self._pool.layout.block_bytes)
            return
        for first, count in runs:
            self._check(ticket, layer, first, count)
            self._ledger.stamp(layer, first, count, ticket.epoch)
        views = [self._pool.blocks(layer, first, count) for first, count in runs]
        size = sum(view.nbytes for view in views)
        frames.receive_into(self._sock, views)
        ticket.puts += number
        ticket.bytes += size

    def _runs(self, number: int) -> list[tuple[int, int]]:
        if not 0 < number <= frames.MOST_RUNS:
            raise BadPut(f"{number} runs in one put")
        table = self._table[: number * frames.RUN.size]
        frames.receive_into(self._sock, [table])
        runs = list(frames.RUN.iter_unpack(table))
        if any(not 0 < count <= self._pool.layout.blocks for _, count in runs):
            raise BadPut("a run is empty or longer than the pool")
        return runs

    def _check(self, ticket: Admitted, layer: int, first: int, count: int) -> None:
        if layer >= self._pool.layout.layers:
            raise BadPut(f"layer {layer} does not exist")
        for block in range(first, first + count):
            if block not in ticket.blocks:
                raise BadPut(f"block {block} is not armed for this ticket")
            if self._ledger.is_stamped(layer, block, ticket.epoch):
                raise BadPut(f"layer {layer} of block {block} came twice")

    def _signal(self, ticket: Admitted | None, puts: int) -> None:
        if ticket is None:
            return
        self._ledger.post(ticket.slot, signal(ticket.epoch, puts))
        ticket.signalled = True
        self._events.signalled(ticket.epoch)

    def _discard(self, size: int) -> None:
        while size:
            piece = self._scratch[: min(size, _DISCARD_BYTES)]
            frames.receive_into(self._sock, [piece])
            size -= piece.nbytes
