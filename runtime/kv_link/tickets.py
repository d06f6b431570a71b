"""Tickets: the token machine's promise that certain blocks wait for one prompt's KV.

Blocks live twice: as the work's memory (the engine's affair) and as something a peer may still write (the
writer lease, kept here). A ticket holds its slot and the lease of its blocks until no writer can touch them
any more; what happened to the request does not matter. Pure: no clock, no sockets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from runtime.kv_link.ledger import SLOTS, signal
from runtime.kv_link.messages import Sealed

_EPOCHS = 2**32


class Lease(Enum):
    """How a writer lease stands. ARMED: puts are welcome. ENDING: the request is over, the writer is asked
    to stop. QUARANTINED: it did not, and cannot be made to. OVER: no writer."""

    ARMED = "armed"
    ENDING = "ending"
    QUARANTINED = "quarantined"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Ticket:
    """`blocks[i]` takes logical block i of every layer. `claim` is what the prompt machine says it did."""

    transfer: str
    slot: int
    epoch: int
    blocks: tuple[int, ...]
    deadline: float
    lease: Lease = Lease.ARMED
    claim: Sealed | None = None
    drained: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the ledger and the receiver saw of a ticket: the slot's word, how many (layer, block) are not
    stamped, and the puts and bytes counted as they were read (None where peers write memory directly)."""

    word: int
    missing: int
    received: tuple[int, int] | None = None


def verdict(ticket: Ticket, claim: Sealed, evidence: Evidence, whole_bytes: int) -> str | None:
    """Why the KV is not whole; None if every block of every layer came exactly once, for this ticket."""
    if evidence.word != signal(ticket.epoch, claim.puts):
        return "the signal does not fit the ticket and its puts"
    if claim.bytes != whole_bytes:
        return f"{claim.bytes} bytes were put, {whole_bytes} belong to the ticket"
    if evidence.received not in (None, (claim.puts, claim.bytes)):
        return "another number of puts or bytes was received than the peer says it put"
    if evidence.missing:
        return f"{evidence.missing} blocks were never put"
    return None


class TicketRefused(Exception):
    """A ticket cannot be had; the message says why."""


class Tickets:
    """All tickets of a token machine whose blocks a writer may still touch."""

    def __init__(self, *, blocks: int, quarantine_limit: int, slots: int = SLOTS) -> None:
        self.quarantine_limit = quarantine_limit
        self._blocks = blocks
        self._free = list(range(slots - 1, -1, -1))
        self._epoch = 0
        self._leased: set[int] = set()
        self._by_transfer: dict[str, Ticket] = {}

    def __len__(self) -> int:
        return len(self._by_transfer)

    def get(self, transfer: str) -> Ticket | None:
        return self._by_transfer.get(transfer)

    @property
    def quarantined_blocks(self) -> int:
        """Blocks whose writer neither stopped nor is known to be dead."""
        return sum(
            len(ticket.blocks) for ticket in self._by_transfer.values() if ticket.lease is Lease.QUARANTINED
        )

    def arm(self, transfer: str, blocks: Sequence[int], deadline: float) -> Ticket:
        """A new ticket. Raises TicketRefused if no slot is left or the quarantine is full, and ValueError
        for a name in use and for blocks that do not exist or still have a writer."""
        self._check(transfer, blocks)
        self._epoch = self._epoch % (_EPOCHS - 1) + 1
        ticket = Ticket(transfer, self._free.pop(), self._epoch, tuple(blocks), deadline)
        self._leased.update(blocks)
        self._by_transfer[transfer] = ticket
        return ticket

    def release(self, ticket: Ticket) -> None:
        """No writer can touch its blocks any more."""
        if ticket.lease is Lease.OVER:
            return
        ticket.lease = Lease.OVER
        del self._by_transfer[ticket.transfer]
        self._leased.difference_update(ticket.blocks)
        self._free.append(ticket.slot)

    def _check(self, transfer: str, blocks: Sequence[int]) -> None:
        if transfer in self._by_transfer:
            raise ValueError(f"transfer {transfer} is armed already, or its writer is not gone yet")
        if not blocks or len(set(blocks)) != len(blocks):
            raise ValueError("a ticket needs blocks, each of them once")
        if not all(0 <= block < self._blocks for block in blocks):
            raise ValueError(f"a ticket's blocks must lie within the pool's {self._blocks}")
        if not self._leased.isdisjoint(blocks):
            raise ValueError("some of these blocks may still be written for another transfer")
        if not self._free:
            raise TicketRefused("every slot of the KV link is in use")
        if self.quarantined_blocks >= self.quarantine_limit:
            raise TicketRefused(
                f"{self.quarantined_blocks} KV blocks are in quarantine, of {self.quarantine_limit} allowed: "
                "prompt machines hang while they may still write here"
            )
