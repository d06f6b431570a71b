"""A lease lasts until its writer is known to be gone."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runtime.config import TransferSettings
from runtime.kv_link.context import Context, Counts
from runtime.kv_link.leases import Leases
from runtime.kv_link.pool import Pool
from runtime.kv_link.tickets import Lease, Ticket
from runtime.kv_link.transport import Faults
from tests.unit.kv_link.machines import LAYOUT, QUICK, WITHIN, News, soon


class Desk:
    """Leases, and what they tell."""

    def __init__(self, fence_after: float = 30.0) -> None:
        self.news = News()
        self.told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.over: list[Ticket] = []
        self.epochs = 0
        context = Context(
            host="h",
            pool=Pool.over(LAYOUT, bytearray(LAYOUT.total_bytes)),
            settings=TransferSettings(),
            limits=replace(QUICK, fence_after=fence_after),
            faults=Faults(),
            events=self.news,
            counts=Counts(),
            loop=asyncio.get_running_loop(),
        )
        self.leases = Leases(
            context,
            late=lambda ticket: self.told.put_nowait(("late", ticket)),
            stuck=lambda ticket: self.told.put_nowait(("stuck", ticket)),
            over=self.over.append,
        )

    def add(self, name: str = "a", *, seconds: float = 30.0) -> Ticket:
        self.epochs += 1
        ticket = Ticket(name, slot=0, epoch=self.epochs, blocks=(1,), deadline=soon(seconds))
        self.leases.add(ticket)
        return ticket

    async def next(self) -> tuple[str, Any]:
        return await asyncio.wait_for(self.told.get(), WITHIN)


@pytest.mark.fault("KV-4")
@pytest.mark.parametrize("first", ["drained", "quiet"])
async def test_a_writer_is_gone_when_it_drained_and_is_quiet(first: str) -> None:
    """Quiet alone may be a put still queued there; drained alone may be one still being read here."""
    desk = Desk()
    ticket = desk.add()
    desk.leases.end(ticket, quiet=first == "quiet", drained=first == "drained")
    desk.leases.look(ticket)
    assert desk.over == []
    ticket.quiet = ticket.drained = True
    desk.leases.look(ticket)
    assert desk.over == [ticket]
    assert desk.leases.get(ticket.epoch) is None
    await desk.news.of("fenced", "a")
    desk.leases.close()


async def test_an_armed_lease_is_not_over_however_quiet_it_is() -> None:
    desk = Desk()
    ticket = desk.add()
    ticket.quiet = ticket.drained = True
    desk.leases.look(ticket)
    assert desk.over == []
    desk.leases.close()


async def test_what_drained_before_its_end_stays_drained() -> None:
    desk = Desk()
    ticket = desk.add()
    ticket.drained = True
    desk.leases.end(ticket, quiet=True, drained=False)
    assert desk.over == [ticket]


async def test_a_quarantined_lease_ends_like_others() -> None:
    desk = Desk()
    ticket = desk.add()
    desk.leases.end(ticket, quiet=True, drained=False)
    ticket.lease, ticket.drained = Lease.QUARANTINED, True
    desk.leases.look(ticket)
    await desk.news.of("fenced", "a")


async def test_a_deadline_then_a_writer_that_does_not_stop() -> None:
    desk = Desk(fence_after=0.01)
    ticket = desk.add(seconds=0.01)
    assert await desk.next() == ("late", ticket)
    desk.leases.end(ticket, quiet=True, drained=False)
    assert await desk.next() == ("stuck", ticket)
    assert desk.over == []
    desk.leases.close()


async def test_what_is_over_is_never_late() -> None:
    desk = Desk()
    ticket = desk.add(seconds=0.01)
    desk.leases.release(ticket)
    waiting = desk.add("b", seconds=0.05)
    assert await desk.next() == ("late", waiting)
    assert desk.news.kinds("a") == []
    desk.leases.close()


async def test_all_are_fenced_when_no_writer_is_left() -> None:
    desk = Desk()
    tickets = [desk.add("a"), desk.add("b")]
    desk.leases.fence_all()
    assert desk.over == tickets
    assert desk.news.all == []  # told soon, not from inside
    await desk.news.of("fenced", "a")
    await desk.news.of("fenced", "b")
