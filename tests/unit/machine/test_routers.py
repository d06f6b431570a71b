"""A router's connection: streams begin, get credit, run out of time, and end with it."""

import asyncio
from typing import Any

import pytest

from runtime.errors import Failure, NoCapacity
from runtime.machine.routers import RouterConnection
from runtime.stream import Stream
from runtime.wire import Cancel, Credit, Event, Sampling, Start, Token


class Phases:
    """Takes legs, keeps them, refuses prompts of length one."""

    def __init__(self) -> None:
        self.begun: list[Stream] = []
        self.stopped: list[tuple[int, str]] = []

    def begin(self, stream: Stream, deadline: float) -> None:
        if len(stream.start.prompt) == 1:
            raise NoCapacity("draining")
        self.begun.append(stream)

    def stop(self, stream: Stream, why: Failure) -> None:
        self.stopped.append((stream.start.stream, why.code))


class Sent:
    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()

    def send(self, step: Any) -> None:
        for event in step.events:
            self.events.put_nowait(event)

    async def next(self) -> Event:
        return await asyncio.wait_for(self.events.get(), 5)


def start(stream: int = 1, prompt: int = 3, deadline: float = 60.0) -> Start:
    return Start(stream, "r", "whole", [1] * prompt, Sampling(9, 1), deadline, 1)


@pytest.fixture
async def made() -> tuple[RouterConnection, Phases, Sent]:
    phases, sent = Phases(), Sent()
    return RouterConnection(sent, phases), phases, sent  # type: ignore[arg-type]


async def test_a_stream_gets_its_credit(made: Any) -> None:
    router, phases, sent = made
    router.received(None, start())
    [stream] = phases.begun
    stream.emit((Token(1),))
    stream.emit((Token(2),), end="stop")
    assert (await sent.next()).tokens[0].id == 1
    router.received(None, Credit(1, 1))
    assert (await sent.next()).end == "stop"


async def test_a_cancel_stops_the_leg_and_says_no_more(made: Any) -> None:
    router, phases, sent = made
    router.received(None, start())
    router.received(None, Cancel(1))
    router.received(None, Cancel(1))
    phases.begun[0].emit((Token(1),))
    await asyncio.sleep(0)
    assert phases.stopped == [(1, "cancelled")]
    assert sent.events.empty()


async def test_the_deadline_stops_the_leg_with_an_error(made: Any) -> None:
    router, phases, sent = made
    router.received(None, start(deadline=0.01))
    event = await sent.next()
    assert event.error is not None
    assert event.error[0] == "deadline_exceeded"
    assert phases.stopped == [(1, "deadline_exceeded")]


async def test_a_stream_that_ended_has_no_deadline_left(made: Any) -> None:
    router, phases, sent = made
    router.received(None, start(deadline=0.01))
    phases.begun[0].emit((Token(1),), end="stop")
    await asyncio.sleep(0.03)
    assert (await sent.next()).end == "stop"
    assert sent.events.empty()
    assert phases.stopped == []


async def test_a_deadline_reaches_a_stream_whose_end_waits_for_credit(made: Any) -> None:
    router, phases, sent = made
    router.received(None, start(deadline=0.01))
    phases.begun[0].emit((Token(1),))
    phases.begun[0].emit((Token(2),), end="stop")
    assert (await sent.next()).end is None
    error = (await sent.next()).error
    assert error is not None
    assert error[0] == "deadline_exceeded"


async def test_a_leg_that_cannot_be_taken_is_refused_and_its_number_is_free_again(made: Any) -> None:
    router, phases, sent = made
    router.received(None, start(prompt=1))
    assert (await sent.next()).error == ("no_capacity", "draining")
    router.received(None, start())
    assert len(phases.begun) == 1


async def test_a_number_in_use_is_refused_and_its_stream_goes_on(made: Any) -> None:
    router, phases, sent = made
    router.received(None, start())
    router.received(None, start())
    error = (await sent.next()).error
    assert error is not None
    assert "in use" in error[1]
    phases.begun[0].emit((Token(1),), end="stop")
    assert (await sent.next()).end == "stop"


async def test_a_lost_router_ends_everything_it_asked_for(made: Any) -> None:
    router, phases, _ = made
    for number in (1, 2, 3):
        router.received(None, start(number))
    router.closed(None, "gone")
    assert sorted(phases.stopped) == [(1, "cancelled"), (2, "cancelled"), (3, "cancelled")]
