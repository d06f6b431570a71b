"""The writer leases given out over one connection, and the timers that bound each of them.

A lease ends when its ticket arrived, or when the writer is known to be gone: it said that it drained and
nothing of its is being written, or no writer of the connection can write any more.
"""

import asyncio
import time
from collections.abc import Callable, Iterator

from runtime.kv_link.context import Context
from runtime.kv_link.tickets import Lease, Ticket


class Leases:
    """By epoch. `late`: a ticket's deadline passed. `stuck`: its writer was asked to stop and did not in
    time. `over`: its lease has ended."""

    def __init__(
        self,
        context: Context,
        *,
        late: Callable[[Ticket], None],
        stuck: Callable[[Ticket], None],
        over: Callable[[Ticket], None],
    ) -> None:
        self._context = context
        self._late = late
        self._stuck = stuck
        self._over = over
        self._tickets: dict[int, Ticket] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets.values()))

    def get(self, epoch: int) -> Ticket | None:
        return self._tickets.get(epoch)

    def add(self, ticket: Ticket) -> None:
        """A ticket was armed."""
        self._tickets[ticket.epoch] = ticket
        self._time(ticket, ticket.deadline - time.monotonic(), self._late)

    def end(self, ticket: Ticket, *, quiet: bool, drained: bool) -> None:
        """No more puts are welcome; `fenced` follows when the writer is gone."""
        ticket.lease = Lease.ENDING
        ticket.quiet, ticket.drained = quiet, ticket.drained or drained
        self._time(ticket, self._context.limits.fence_after, self._stuck)
        self.look(ticket)

    def look(self, ticket: Ticket) -> None:
        """Is the writer of an ending lease gone?"""
        if ticket.drained and ticket.quiet and ticket.lease in (Lease.ENDING, Lease.QUARANTINED):
            self._fence(ticket)

    def release(self, ticket: Ticket) -> None:
        """The writer is gone, or has nothing left to write."""
        self._timers.pop(ticket.epoch).cancel()
        del self._tickets[ticket.epoch]
        self._over(ticket)

    def fence_all(self) -> None:
        """No writer of this connection can write any more."""
        for ticket in self:
            self._fence(ticket)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _fence(self, ticket: Ticket) -> None:
        self.release(ticket)
        self._context.loop.call_soon(self._context.events.fenced, ticket.transfer)

    def _time(self, ticket: Ticket, seconds: float, call: Callable[[Ticket], None]) -> None:
        if old := self._timers.get(ticket.epoch):
            old.cancel()
        self._timers[ticket.epoch] = self._context.loop.call_later(max(0.0, seconds), call, ticket)
