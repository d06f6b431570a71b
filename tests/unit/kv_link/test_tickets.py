"""When KV is whole, and how long a writer lease lasts."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from runtime.kv_link.ledger import signal
from runtime.kv_link.messages import Sealed
from runtime.kv_link.tickets import Evidence, Lease, Ticket, TicketRefused, Tickets, verdict
from runtime.wire import Token

WHOLE = 4096
TICKET = Ticket("t", slot=3, epoch=9, blocks=(1, 2), deadline=0.0)
CLAIM = Sealed(epoch=9, first=Token(1), mode="layerwise", puts=5, bytes=WHOLE, started=0, ended=1, computed=1)
SEEN = Evidence(word=signal(9, 5), missing=0, received=(5, WHOLE))


def tickets(**options: Any) -> Tickets:
    return Tickets(**{"blocks": 16, "quarantine_limit": 4, "slots": 3} | options)


def test_everything_in_its_place_is_whole() -> None:
    assert verdict(TICKET, CLAIM, SEEN, WHOLE) is None
    assert verdict(TICKET, CLAIM, Evidence(word=SEEN.word, missing=0), WHOLE) is None


@pytest.mark.fault("KV-3")
@pytest.mark.parametrize(
    ("claim", "seen", "why"),
    [
        ({}, {"word": 0}, "signal"),  # lost
        ({}, {"word": signal(8, 5)}, "signal"),  # of an old epoch
        ({}, {"word": signal(9, 4)}, "signal"),  # ahead of a put
        ({"puts": 6}, {}, "signal"),
        ({"bytes": WHOLE - 1}, {}, "bytes"),
        ({"bytes": WHOLE + 1}, {}, "bytes"),
        ({}, {"received": (5, WHOLE - 1)}, "received"),
        ({}, {"received": (4, WHOLE)}, "received"),
        ({}, {"received": (0, 0)}, "received"),
        ({}, {"missing": 1}, "never put"),
    ],
)
def test_anything_else_is_not(claim: dict[str, Any], seen: dict[str, Any], why: str) -> None:
    evidence = Evidence(**{"word": SEEN.word, "missing": 0, "received": SEEN.received} | seen)
    reason = verdict(TICKET, structs.replace(CLAIM, **claim), evidence, WHOLE)
    assert reason is not None
    assert why in reason


def test_tickets_have_slots_and_epochs_of_their_own() -> None:
    table = tickets()
    first, second = table.arm("a", [1, 2], 0.0), table.arm("b", [3], 0.0)
    assert first.slot != second.slot
    assert second.epoch > first.epoch > 0
    assert (first.blocks, first.lease, len(table)) == ((1, 2), Lease.ARMED, 2)
    assert table.get("a") is first
    assert table.get("c") is None


def test_a_slot_comes_back_with_a_new_epoch() -> None:
    table = tickets(slots=1)
    old = table.arm("a", [1], 0.0)
    table.release(old)
    new = table.arm("a", [1], 0.0)
    assert (new.slot, new.epoch > old.epoch) == (old.slot, True)


def test_releasing_twice_gives_nothing_back_twice() -> None:
    table = tickets(slots=1)
    old = table.arm("a", [1], 0.0)
    table.release(old)
    new = table.arm("a", [1], 0.0)
    table.release(old)
    assert table.get("a") is new
    with pytest.raises(TicketRefused, match="slot"):
        table.arm("b", [2], 0.0)


@pytest.mark.fault("KV-4")
def test_blocks_with_a_writer_are_not_given_to_another() -> None:
    table = tickets()
    ticket = table.arm("a", [1, 2], 0.0)
    ticket.lease = Lease.QUARANTINED
    with pytest.raises(ValueError, match="still be written"):
        table.arm("b", [2, 3], 0.0)
    table.release(ticket)
    assert table.arm("b", [2, 3], 0.0).blocks == (2, 3)


@pytest.mark.parametrize(
    ("blocks", "why"), [([], "needs blocks"), ([1, 1], "once"), ([16], "within"), ([-1], "within")]
)
def test_blocks_that_make_no_sense_are_refused(blocks: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        tickets().arm("a", blocks, 0.0)


def test_a_name_in_use_is_refused() -> None:
    table = tickets()
    table.arm("a", [1], 0.0)
    with pytest.raises(ValueError, match="armed already"):
        table.arm("a", [2], 0.0)


@pytest.mark.fault("KV-1")
def test_a_full_quarantine_gives_out_no_tickets_until_it_empties() -> None:
    table = tickets()
    hung = table.arm("a", [1, 2, 3, 4], 0.0)
    table.arm("b", [5], 0.0)
    hung.lease = Lease.QUARANTINED
    assert table.quarantined_blocks == 4
    with pytest.raises(TicketRefused, match="4 KV blocks are in quarantine"):
        table.arm("c", [6], 0.0)
    table.release(hung)
    assert table.quarantined_blocks == 0
    assert table.arm("c", [6], 0.0).transfer == "c"


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_no_two_leases_ever_share_a_block_or_a_slot(steps: list[tuple[bool, int]]) -> None:
    table = Tickets(blocks=6, quarantine_limit=6, slots=4)
    held: dict[str, Ticket] = {}
    for number, (arm, block) in enumerate(steps):
        if arm:
            try:
                held[str(number)] = table.arm(str(number), [block, (block + 1) % 6], 0.0)
            except (TicketRefused, ValueError):
                continue
        elif held:
            table.release(held.pop(sorted(held)[block % len(held)]))
        blocks = [block for ticket in held.values() for block in ticket.blocks]
        slots = [ticket.slot for ticket in held.values()]
        assert len(set(blocks)) == len(blocks)
        assert len(set(slots)) == len(slots) <= 4
        assert len(table) == len(held)
