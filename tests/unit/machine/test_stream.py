"""A leg's output: credit, one frame per tick, exactly one end."""

import asyncio
from typing import Any

import pytest

from runtime.errors import DeadlineExceeded
from runtime.stream import Outbox, Stream
from runtime.wire import Event, Load, Phase, Sampling, Start, Step, Token


class Sent:
    """A connection that keeps what it is given."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def send(self, message: Any) -> None:
        self.steps.append(message)

    async def events(self) -> list[Event]:
        await asyncio.sleep(0)
        return [event for step in self.steps for event in step.events]


def start(credit: int, phase: Phase = "whole", generated: int = 0) -> Start:
    return Start(7, "r", phase, [1], Sampling(9, 1), 5.0, credit, generated=[0] * generated)


@pytest.fixture
async def sent() -> Sent:
    return Sent()


def stream(sent: Sent, **options: Any) -> Stream:
    return Stream(Outbox(sent), start(**options))  # type: ignore[arg-type]


def ids(events: list[Event]) -> list[int]:
    return [token.id for event in events for token in event.tokens]


async def test_one_tick_is_one_frame_with_the_load(sent: Sent) -> None:
    outbox = Outbox(sent)  # type: ignore[arg-type]
    streams = [Stream(outbox, start(9)) for _ in range(3)]
    for one in streams:
        one.emit((Token(1),))
    outbox.report(Load(sequences_running=3))
    assert len(await sent.events()) == 3
    assert [step.load.sequences_running for step in sent.steps] == [3]


async def test_a_load_that_changed_is_reported_without_events_and_only_then(sent: Sent) -> None:
    outbox = Outbox(sent)  # type: ignore[arg-type]
    outbox.report(Load(sequences_waiting=1))
    outbox.report(Load(sequences_waiting=1))
    assert [step.load.sequences_waiting for step in sent.steps] == [1]


async def test_tokens_wait_for_credit_and_keep_their_order_and_index(sent: Sent) -> None:
    one = stream(sent, credit=2)
    for number in range(5):
        one.emit((Token(number),), end="length" if number == 4 else None)
    assert ids(await sent.events()) == [0, 1]
    one.credit(1)
    assert ids(await sent.events()) == [0, 1, 2]
    one.credit(9)
    events = await sent.events()
    assert ids(events) == [0, 1, 2, 3, 4]
    assert [event.index for event in events] == [0, 1, 2, 3, 4]
    assert [event.end for event in events] == [None] * 4 + ["length"]


@pytest.mark.parametrize(
    ("phase", "generated", "first"),
    [("whole", 0, 0), ("prompt", 0, 0), ("token", 0, 1), ("whole", 3, 3), ("token", 3, 4)],
)
async def test_the_first_index_is_that_of_the_phase(
    sent: Sent, phase: Phase, generated: int, first: int
) -> None:
    stream(sent, credit=5, phase=phase, generated=generated).emit((Token(1),))
    assert [event.index for event in await sent.events()] == [first]


async def test_a_leg_that_starts_over_tells_the_first_token_too(sent: Sent) -> None:
    one = stream(sent, credit=5, phase="token", generated=2)
    one.rewind()
    one.emit((Token(1),))
    assert [event.index for event in await sent.events()] == [2]


async def test_the_end_comes_once_and_nothing_after_it(sent: Sent) -> None:
    one = stream(sent, credit=5)
    ends: list[int] = []
    one.on_end = lambda: ends.append(1)
    one.emit((Token(1),), end="stop")
    one.emit((Token(2),), end="stop")
    one.fail(DeadlineExceeded("late"))
    one.silence()
    assert [event.end for event in await sent.events()] == ["stop"]
    assert ends == [1]


async def test_a_failure_drops_what_waits_for_credit(sent: Sent) -> None:
    one = stream(sent, credit=1)
    ends: list[int] = []
    one.on_end = lambda: ends.append(1)
    one.emit((Token(1),))
    one.emit((Token(2),), end="stop")
    one.fail(DeadlineExceeded("late"))
    one.credit(9)
    events = await sent.events()
    assert ids(events) == [1]
    assert events[-1].error == ("deadline_exceeded", "late")
    assert ends == [1]
