"""A choice that loses its machines goes on elsewhere, and the client cannot tell."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fake_machine import FakeLeg, FakeMachine
from front import TRACE, Front, Serve
from runtime.tokenizer import Tokenizer

Four = tuple[FakeMachine, FakeMachine, FakeMachine, FakeMachine]
RESTARTED = ["machine_lost", "no_capacity", "cancelled"]


@pytest.fixture
async def four(tmp_path: Path) -> AsyncIterator[Four]:
    """Two of each; the router tries p0 and t0 first."""
    async with (
        FakeMachine(tmp_path, "p0", "prompt") as p0,
        FakeMachine(tmp_path, "p1", "prompt") as p1,
        FakeMachine(tmp_path, "t0", "token") as t0,
        FakeMachine(tmp_path, "t1", "token") as t1,
    ):
        yield p0, p1, t0, t1


@pytest.fixture
def abc(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode("abcdef", special=False)


class Streaming:
    """A streamed completion under way."""

    def __init__(self, front: Front, **asked: Any) -> None:
        body = {"max_tokens": 4, "stream": True, "seed": 3} | asked
        self.reply = asyncio.create_task(front.complete(body, TRACE))

    async def end(self) -> tuple[str, dict[str, Any]]:
        """The text that the client saw, and the trace of the only choice."""
        events = (await self.reply).events
        return "".join(one["choices"][0]["text"] for one in events), events[-1]["splitwise"]["choices"][0]


async def finish(prompt: FakeLeg, token: FakeLeg, ids: list[int]) -> None:
    """Serve the rest of the answer, from where the legs are told to begin."""
    assert prompt.start.generated == token.start.generated
    done = len(prompt.start.generated)
    prompt.send(ids[done], end="handoff")
    token.send(*ids[done + 1 :], end="length")


async def two_tokens(
    front: Front, p0: FakeMachine, t0: FakeMachine, ids: list[int]
) -> tuple[FakeLeg, FakeLeg]:
    """Serve one token from either machine, until the router has taken both; the legs go on."""
    prompt, token = await p0.leg(), await t0.leg()
    prompt.send(ids[0], end="handoff")
    token.send(ids[1])
    await front.seen("splitwise_tbt_seconds_count", 1)
    return prompt, token


@pytest.mark.fault("LEG-2")
@pytest.mark.parametrize("lost", ["prompt", "token"])
async def test_a_machine_lost_before_the_first_token(
    serve: Serve, four: Four, abc: list[int], lost: str
) -> None:
    p0, p1, t0, t1 = four
    async with serve(four) as front:
        answer = Streaming(front)
        first, other = await p0.leg(), await t0.leg()
        await (p0 if lost == "prompt" else t0).lose()
        again = (await p1.leg(), await t0.leg()) if lost == "prompt" else (await p0.leg(), await t1.leg())
        assert again[0].start.transfer not in ("", first.start.transfer)
        assert again[0].start.sampling == first.start.sampling
        await finish(*again, abc[:4])
        text, trace = await answer.end()
        assert (text, trace["restarts"]) == ("abcd", 1)
        async with asyncio.timeout(5):
            await (other if lost == "prompt" else first).cancelled.wait()
        front.expect_idle()


@pytest.mark.fault("LEG-2")
async def test_a_token_machine_lost_in_mid_stream_repeats_nothing(
    serve: Serve, four: Four, abc: list[int]
) -> None:
    p0, _, t0, t1 = four
    async with serve(four) as front:
        answer = Streaming(front)
        prompt, _token = await two_tokens(front, p0, t0, abc)
        await t0.lose()
        again = await p0.leg(), await t1.leg()
        assert again[0].start.generated == abc[:2]
        assert again[0].start.prompt == prompt.start.prompt
        assert again[0].start.sampling.max_tokens == 4
        await finish(*again, abc[:4])
        text, trace = await answer.end()
        assert text == "abcd"
        assert trace["token_ids"] == abc[:4]
        assert (trace["prompt_machine"], trace["token_machine"], trace["restarts"]) == ("p0", "t1", 1)
        front.expect_idle()


async def test_the_prompt_machine_may_go_after_the_hand_off(serve: Serve, four: Four, abc: list[int]) -> None:
    p0, _, t0, _ = four
    async with serve(four) as front:
        answer = Streaming(front)
        _prompt, token = await two_tokens(front, p0, t0, abc)
        await p0.lose()
        await front.connected(3)
        token.send(*abc[2:4], end="length")
        text, trace = await answer.end()
        assert (text, trace["restarts"]) == ("abcd", 0)


@pytest.mark.fault("LEG-2")
@pytest.mark.parametrize("code", RESTARTED)
@pytest.mark.parametrize("leg", [0, 1])
async def test_a_leg_that_can_be_tried_again_is(
    serve: Serve, four: Four, abc: list[int], code: str, leg: int
) -> None:
    p0, p1, t0, t1 = four
    async with serve(four) as front:
        answer = Streaming(front)
        legs = await p0.leg(), await t0.leg()
        legs[leg].fail(code)
        await finish(
            *((await p1.leg(), await t0.leg()) if leg == 0 else (await p0.leg(), await t1.leg())), abc[:4]
        )
        text, trace = await answer.end()
        assert (text, trace["restarts"]) == ("abcd", 1)
        async with asyncio.timeout(5):
            await legs[1 - leg].cancelled.wait()
        front.expect_idle()


async def test_held_tokens_of_a_lost_attempt_are_forgotten(serve: Serve, four: Four, abc: list[int]) -> None:
    """The token machine was ahead of the first token: nothing of it may show up later."""
    p0, p1, t0, _ = four
    async with serve(four) as front:
        answer = Streaming(front)
        _, token = await p0.leg(), await t0.leg()
        token.send(9, 9, 9, end="length")
        await p0.lose()
        await finish(await p1.leg(), await t0.leg(), abc[:4])
        assert (await answer.end())[0] == "abcd"


async def test_text_held_back_for_a_stop_string_survives_a_restart(
    serve: Serve, four: Four, abc: list[int]
) -> None:
    p0, _, t0, t1 = four
    async with serve(four) as front:
        answer = Streaming(front, stop="bcd", max_tokens=6)
        await two_tokens(front, p0, t0, abc)
        await t0.lose()
        again = await p0.leg(), await t1.leg()
        again[0].send(abc[2], end="handoff")
        again[1].send(abc[3])
        text, trace = await answer.end()
        assert (text, trace["token_ids"]) == ("a", abc[:4])


@pytest.mark.fault("LEG-2")
@pytest.mark.parametrize("told_by", [0, 1])
async def test_a_transfer_that_failed_avoids_both_its_machines(
    serve: Serve, four: Four, abc: list[int], told_by: int
) -> None:
    """A dead prompt machine is often told of first by the token machine: one death, one restart."""
    p0, p1, t0, t1 = four
    async with serve(four) as front:
        answer = Streaming(front)
        legs = await p0.leg(), await t0.leg()
        legs[told_by].fail("transfer_failed")
        await finish(await p1.leg(), await t1.leg(), abc[:4])
        text, trace = await answer.end()
        assert (text, trace["restarts"]) == ("abcd", 1)


async def test_the_last_token_of_a_restart_takes_one_machine(
    serve: Serve, four: Four, abc: list[int]
) -> None:
    p0, p1, t0, _ = four
    async with serve(four) as front:
        answer = Streaming(front, max_tokens=3)
        _prompt, token = await two_tokens(front, p0, t0, abc)
        token.fail("transfer_failed")
        whole = await p1.leg()
        assert (whole.start.phase, whole.start.generated, whole.start.transfer) == ("whole", abc[:2], "")
        whole.send(abc[2], end="length")
        assert (await answer.end())[0] == "abc"


@pytest.mark.fault("LEG-2")
@pytest.mark.parametrize("restarts", [0, 1, 2])
async def test_restarts_are_bounded_and_counted(serve: Serve, four: Four, restarts: int) -> None:
    async with serve(four, restarts=restarts) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 4}))
        for _ in range(restarts + 1):
            leg = await next_leg(four)
            leg.fail("transfer_failed", "the link broke")
        reply = await answer
        assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
        assert reply.error == {
            "message": "the link broke", "type": "server_error", "param": None, "code": "transfer_failed",
        }  # fmt: skip
        assert await front.metric("splitwise_restarts_total") == restarts
        front.expect_idle()


async def next_leg(machines: Four) -> FakeLeg:
    """The token leg of the next attempt, wherever it is."""
    waits = {asyncio.create_task(machine.leg()) for machine in machines[2:]}
    done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in others:
        wait.cancel()
    return done.pop().result()


async def test_after_the_last_restart_a_stream_ends_with_an_error_event(
    serve: Serve, four: Four, abc: list[int]
) -> None:
    p0, _, t0, _ = four
    async with serve(four, restarts=0) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 4, "stream": True}))
        prompt, _ = await p0.leg(), await t0.leg()
        prompt.send(abc[0], end="handoff")
        await front.seen("splitwise_ttft_seconds_count", 1)
        await t0.lose()
        first, last = (await answer).raw.decode().strip().split("\n\n")
        assert '"text":"a"' in first
        assert '"code":"machine_lost"' in last
        assert "machine t0 was lost" in last
        front.expect_idle()


async def test_only_the_choice_that_lost_its_machine_restarts(
    serve: Serve, four: Four, abc: list[int]
) -> None:
    p0, p1, t0, t1 = four
    async with serve(four) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 2, "n": 2}, TRACE))
        one, two = (await p0.leg(), await t0.leg()), (await p1.leg(), await t1.leg())
        await t1.lose()
        again = await t0.leg()
        for prompt, token in (one, (await either(p0, p1), again)):
            prompt.send(abc[0], end="handoff")
            token.send(abc[1], end="length")
        trace = (await answer).json["splitwise"]["choices"]
        assert sorted(choice["restarts"] for choice in trace) == [0, 1]
        assert two[0].cancelled.is_set()


async def either(*machines: FakeMachine) -> FakeLeg:
    waits = {asyncio.create_task(machine.leg()) for machine in machines}
    done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in others:
        wait.cancel()
    return done.pop().result()
