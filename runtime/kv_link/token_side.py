"""The token machine's half: tickets are armed with prompt machines, until their KV is whole or fenced off."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from runtime.kv_link.backoff import Backoff
from runtime.kv_link.callee import Callee
from runtime.kv_link.context import Context
from runtime.kv_link.doors import Doors
from runtime.kv_link.hello import AUTO
from runtime.kv_link.tickets import Ticket, TicketRefused, Tickets
from runtime.kv_link.transport import Place
from runtime.kv_link.transports import TRANSPORTS
from runtime.link import Connection, LinkError

Dial = Callable[[Callee], Awaitable[Connection]]
"""Calls a callee's address and checks who answers. Raises LinkError."""


class TokenSide:
    """Called on the loop's thread."""

    def __init__(self, context: Context, place: Place, dial: Dial) -> None:
        layout = context.pool.layout
        limit = max(1, int(layout.blocks * context.limits.quarantine))
        self.tickets = Tickets(blocks=layout.blocks, quarantine_limit=limit)
        self.doors = Doors(place, context.limits)
        self._context = context
        self._place = place
        self._dial = dial
        self._backoff = Backoff(least=context.limits.retry_least, most=context.limits.retry_most)
        self._callees: dict[str, Callee] = {}
        self._living: set[Callee] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._serving: dict[str, Callee] = {}

    def start(self) -> None:
        """Open the doors. Raises TransportError."""
        wanted = self._context.settings.transport
        self.doors.start([way for name, way in TRANSPORTS.items() if wanted in (AUTO, name)])

    def arm(self, transfer: str, *, prompt_machine: str, blocks: Sequence[int], deadline: float) -> None:
        """See `KvLink.arm`."""
        try:
            if not self.doors.ways:
                raise TicketRefused("transport 'shm' was asked for, but the KV pool is not in shared memory")
            ticket = self.tickets.arm(transfer, blocks, deadline)
        except TicketRefused as refused:
            self._context.loop.call_soon(self._context.events.transfer_failed, transfer, str(refused))
            self._context.loop.call_soon(self._context.events.fenced, transfer)
            return
        callee = self._serving[transfer] = self._callee(prompt_machine)
        callee.arm(ticket)

    def revoke(self, transfer: str, reason: str) -> None:
        """See `KvLink.revoke`."""
        ticket = self.tickets.get(transfer)
        if ticket:
            self._serving[transfer].revoke(ticket, reason)

    async def close(self) -> None:
        """Hang up, wait for writers as long as it takes to fence them, let go."""
        for call in self._calls:
            call.cancel()
        living = list(self._living)
        for callee in living:
            callee.hang_up("the machine stops")
        waits = [asyncio.ensure_future(callee.writers_gone()) for callee in living]
        if waits:
            _, late = await asyncio.wait(waits, timeout=self._context.limits.fence_after)
            for wait in late:
                wait.cancel()
        for callee in living:
            callee.close()
        await self.doors.close()

    # ---- the callees' side

    def over(self, ticket: Ticket) -> None:
        self.tickets.release(ticket)
        del self._serving[ticket.transfer]

    def ended(self, callee: Callee) -> None:
        if callee.was_useful:
            self._backoff.worked(callee.address)
        else:
            self._backoff.failed(callee.address, time.monotonic())

    def left(self, callee: Callee) -> None:
        self._living.discard(callee)
        if self._callees.get(callee.address) is callee:
            del self._callees[callee.address]

    # ---- inside

    def _callee(self, address: str) -> Callee:
        callee = self._callees.get(address)
        if callee is None or callee.ended is not None:
            callee = Callee(self._context, self._place, self.doors, self, address)
            self._callees[address] = callee
            self._living.add(callee)
            call = self._context.loop.create_task(self._call(callee))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return callee

    async def _call(self, callee: Callee) -> None:
        await asyncio.sleep(self._backoff.wait(callee.address, time.monotonic()))
        try:
            connection = await self._dial(callee)
        except LinkError as error:
            callee.unreachable(str(error))
            return
        if connection.is_closed or callee.ended is not None:
            connection.close("too late")
            callee.unreachable("the connection ended at once")
        else:
            callee.connected(connection)
