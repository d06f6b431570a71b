"""Prompt and token legs against a written-down engine and link: who is told what, and when blocks go free."""

import asyncio
from typing import Any

import pytest

from runtime.engine import Failed, Reserved, Sampled, Work
from runtime.errors import Cancelled, DeadlineExceeded, TransferFailed
from runtime.prompt_server.worker import PromptWorker
from runtime.stream import Outbox, Stream
from runtime.token_server.worker import TokenWorker
from runtime.wire import FINISHED, Event, Phase, Sampling, Start, Token, Transfer

STATS = Transfer("layerwise", "shm", 4096, 0.01, 0.001)


class Log:
    """Stands for the engine thread, the link and the connection; keeps every call as one line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.works: list[Work] = []
        self.events: list[Event] = []

    def send(self, step: Any) -> None:
        self.events += step.events

    def submit(self, work: Work) -> None:
        self.works.append(work)
        self.lines.append(f"submit {work.phase}")

    def arm(self, transfer: str, *, prompt_machine: str, blocks: Any, deadline: float) -> None:
        self.lines.append(f"arm {transfer} {prompt_machine} {list(blocks)} {deadline:g}")

    def expect(self, transfer: str, *, deadline: float) -> None:
        self.lines.append(f"expect {transfer} {deadline:g}")

    def __getattr__(self, name: str) -> Any:
        return lambda id, *rest: self.lines.append(f"{name} {id}")

    async def told(self) -> list[Event]:
        await asyncio.sleep(0)
        return self.events


def leg(log: Log, phase: Phase) -> Stream:
    begun = Start(1, "r", phase, [1, 2, 3], Sampling(9, 1), 5.0, 100, transfer="t", prompt_machine="unix:/p")
    return Stream(Outbox(log), begun)  # type: ignore[arg-type]


@pytest.fixture
async def log() -> Log:
    return Log()


def prompts(log: Log) -> PromptWorker:
    return PromptWorker(log, log)  # type: ignore[arg-type]


def tokens(log: Log, recompute: bool = False) -> TokenWorker:
    return TokenWorker(log, log, recompute=recompute)  # type: ignore[arg-type]


# ---- prompt legs


@pytest.mark.fault("DRAIN-1")
async def test_a_prompt_waits_for_its_ticket_and_is_held_until_drained(log: Log) -> None:
    worker = prompts(log)
    worker.start(leg(log, "prompt"), 5.0)
    assert log.lines == ["expect t 5"]
    put: Any = object()
    worker.ticket("t", put)
    assert log.works[0].put is put
    worker.news(Sampled("t", (Token(4),), "handoff"))
    assert [(event.index, event.end) for event in await log.told()] == [(0, "handoff")]
    assert len(worker) == 1
    worker.drained("t")
    assert log.lines == ["expect t 5", "submit prompt", "drained t"]
    assert len(worker) == 0


async def test_a_prompt_that_drained_before_its_last_word_still_tells_it(log: Log) -> None:
    """A put that is aborted because the first token ended the request has drained before the news is out."""
    worker = prompts(log)
    worker.start(leg(log, "prompt"), 5.0)
    worker.ticket("t", object())  # type: ignore[arg-type]
    worker.drained("t")
    worker.news(Sampled("t", (Token(2),), "stop"))
    assert [event.end for event in await log.told()] == ["stop"]
    assert log.lines[-1] == "drained t"
    assert len(worker) == 0


async def test_a_ticket_for_a_leg_that_has_ended_is_declined(log: Log) -> None:
    worker = prompts(log)
    worker.start(leg(log, "prompt"), 5.0)
    worker.stop("t", Cancelled("gone"))
    worker.ticket("t", object())  # type: ignore[arg-type]
    assert log.lines == ["expect t 5", "forget t", "forget t"]
    worker.drained("t")
    assert (log.works, len(worker), await log.told()) == ([], 0, [])


@pytest.mark.fault("KV-2")
@pytest.mark.parametrize("why", [Cancelled("gone"), DeadlineExceeded("late")])
async def test_a_running_prompt_that_stops_leaves_the_engine_then_its_blocks(log: Log, why: Any) -> None:
    worker = prompts(log)
    worker.start(leg(log, "prompt"), 5.0)
    worker.ticket("t", object())  # type: ignore[arg-type]
    worker.stop("t", why)
    worker.drained("t")
    assert log.lines[2:] == ["cancel t", "forget t", "drained t"]
    said = [event.error for event in await log.told()]
    assert said == ([] if isinstance(why, Cancelled) else [("deadline_exceeded", "late")])


async def test_an_engine_that_fails_the_prompt_frees_the_token_machine_at_once(log: Log) -> None:
    worker = prompts(log)
    worker.start(leg(log, "prompt"), 5.0)
    worker.ticket("t", object())  # type: ignore[arg-type]
    worker.news(Failed("t", "engine_failure", "odd"))
    assert log.lines[-1] == "forget t"
    assert (await log.told())[0].error == ("engine_failure", "odd")


async def test_a_transfer_that_fails_is_told_to_the_router(log: Log) -> None:
    worker = prompts(log)
    worker.start(leg(log, "prompt"), 5.0)
    worker.failed("t", "no ticket came")
    worker.drained("t")
    assert (await log.told())[0].error == ("transfer_failed", "no ticket came")
    assert "drained t" not in log.lines  # the engine never heard of it
    assert len(worker) == 0


# ---- token legs


def armed(log: Log, **options: Any) -> TokenWorker:
    worker = tokens(log, **options)
    worker.start(leg(log, "token"), 5.0)
    worker.news(Reserved("t", (4, 5)))
    return worker


async def test_a_token_leg_reserves_arms_takes_in_and_decodes_from_the_second_token(log: Log) -> None:
    worker = armed(log)
    worker.arrived("t", Token(4), STATS)
    worker.news(Sampled("t", (Token(5),)))
    worker.news(Sampled("t", (Token(6),), "stop"))
    assert log.lines == ["submit token", "arm t unix:/p [4, 5] 5", "arrived t"]
    events = await log.told()
    assert events[0].transfer == STATS
    assert [(e.index, e.tokens[0].id, e.end) for e in events[1:]] == [(1, 5, None), (2, 6, "stop")]
    assert len(worker) == 0


async def test_a_reservation_nobody_waits_for_goes_straight_back(log: Log) -> None:
    worker = tokens(log)
    worker.start(leg(log, "token"), 5.0)
    worker.stop("t", Cancelled("gone"))
    worker.news(Reserved("t", (4, 5)))
    assert log.lines == ["submit token", "cancel t", "fenced t"]


@pytest.mark.fault("KV-6")
async def test_blocks_of_a_cancelled_transfer_wait_for_the_fence(log: Log) -> None:
    worker = armed(log)
    worker.stop("t", Cancelled("client left"))
    assert log.lines[2:] == ["cancel t", "revoke t"]
    assert len(worker) == 1
    worker.arrived("t", Token(4), STATS)  # too late: it must not come back to life
    worker.fenced("t")
    assert log.lines[4:] == ["fenced t"]
    assert (len(worker), await log.told()) == (0, [])


async def test_a_failed_transfer_is_the_routers_to_restart(log: Log) -> None:
    worker = armed(log)
    worker.failed("t", "peer gone")
    assert (await log.told())[0].error == ("transfer_failed", "peer gone")
    worker.fenced("t")
    assert log.lines[2:] == ["cancel t", "revoke t", "fenced t"]


async def test_a_first_token_that_ended_the_request_is_no_failure(log: Log) -> None:
    worker = armed(log)
    worker.failed("t", FINISHED)
    worker.fenced("t")
    assert (await log.told(), len(worker)) == ([], 0)


async def test_recompute_runs_the_whole_request_here_with_its_first_token(log: Log) -> None:
    worker = armed(log, recompute=True)
    stream = worker._legs["t"].stream
    worker.failed("t", "peer gone")
    assert (log.works[-1].phase, stream.leg) == ("whole", log.works[-1].id)
    worker.fenced("t")
    worker.news(Sampled(stream.leg, (Token(4),)))
    worker.news(Sampled(stream.leg, (Token(5),), "length"))
    assert [(e.index, e.end) for e in await log.told()] == [(0, None), (1, "length")]
    assert len(worker) == 0


async def test_a_running_leg_that_stops_needs_no_fence(log: Log) -> None:
    worker = armed(log)
    worker.arrived("t", Token(4), STATS)
    worker.stop("t", TransferFailed("x"))
    assert log.lines[-1] == "cancel t"
    assert len(worker) == 0


async def test_a_whole_request_never_touches_the_link(log: Log) -> None:
    worker = tokens(log)
    stream = leg(log, "whole")
    worker.start(stream, 5.0)
    worker.news(Sampled(stream.leg, (Token(5),), "stop"))
    assert log.lines == ["submit whole"]
    assert (await log.told())[0].index == 0
