"""When it cannot be done: who is told what, how soon, and what is let go."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fake_machine import FakeMachine
from front import Reply, Serve, play, until
from runtime.tokenizer import Tokenizer

Pair = tuple[FakeMachine, FakeMachine]


# ---- a leg fails


@pytest.mark.fault("LEG-1", "KV-2")
@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("engine_failure", 500, "server_error"),
        ("invalid_request", 400, "invalid_request_error"),
        ("deadline_exceeded", 504, "server_error"),
        ("never heard of", 500, "server_error"),
    ],
)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_leg_is_told_at_once_and_the_other_cancelled(
    serve: Serve, pair: Pair, code: str, status: int, kind: str, failing: int, stream: bool
) -> None:
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 4, "stream": stream}))
        legs = await pair[0].leg(), await pair[1].leg()
        legs[failing].fail(code, "it broke")
        async with asyncio.timeout(1):
            reply = await answer
            await legs[1 - failing].cancelled.wait()
        assert reply.status == status
        assert (reply.error["message"], reply.error["type"]) == ("it broke", kind)
        assert not legs[failing].cancelled.is_set()
        front.expect_idle()


@pytest.mark.fault("LEG-1")
async def test_a_failure_after_the_first_token_is_an_event_in_the_stream(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 4, "stream": True}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        prompt.send(*tokenizer.encode("a"), end="handoff")
        token.fail("engine_failure", "out of luck")
        reply = await answer
        *_, last = reply.raw.decode().strip().split("\n\n")
        assert reply.status == 200
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["message"], error["type"], error["code"]) == (
            "out of luck",
            "server_error",
            "engine_failure",
        )
        front.expect_idle()


@pytest.mark.fault("LEG-1")
async def test_one_failed_choice_ends_the_request_and_cancels_its_siblings(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 4, "n": 3}))
        prompts = [await pair[0].leg() for _ in range(3)]
        tokens = [await pair[1].leg() for _ in range(3)]
        tokens[1].fail("engine_failure")
        assert (await answer).status == 500
        async with asyncio.timeout(5):
            for leg in (*prompts, tokens[0], tokens[2]):
                await leg.cancelled.wait()
        front.expect_idle()


async def test_machines_that_end_too_early_are_an_error_not_a_short_answer(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 4}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        token.index = 2
        token.send(5, end="length")
        prompt.send(5, end="handoff")
        reply = await answer
        assert reply.status == 500
        assert "output 1" in reply.error["message"]
        front.expect_idle()


# ---- time


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_takes_too_long_ends_everywhere(serve: Serve, pair: Pair, stream: bool) -> None:
    async with serve(pair, request_timeout_seconds=0.2) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 4, "stream": stream}))
        legs = await pair[0].leg(), await pair[1].leg()
        assert all(0 < leg.start.deadline_s <= 0.2 for leg in legs)
        reply = await answer
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
        async with asyncio.timeout(5):
            for leg in legs:
                await leg.cancelled.wait()
        front.expect_idle()


# ---- no route


@pytest.mark.fault("SPLIT-1")
@pytest.mark.parametrize(("present", "missing"), [("prompt", "token"), ("token", "prompt")])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_pool_is_named_in_a_503(
    serve: Serve, tmp_path: Path, present: Any, missing: str, stream: bool
) -> None:
    async with (
        FakeMachine(tmp_path, "only", present) as only,
        serve([only], wait_for_machines_seconds=0.1) as front,
    ):
        replies = await asyncio.gather(*(front.complete({"stream": stream}) for _ in range(20)))
        for reply in replies:
            assert (reply.status, reply.error["code"]) == (503, "no_capacity")
            assert f"the {missing} pool is empty" in reply.error["message"]
            assert reply.headers["Retry-After"] == "5"
        assert only.legs == []
        assert (
            await front.metric('splitwise_requests_total{endpoint="completion",outcome="no_capacity"}') == 20
        )
        front.expect_idle()


@pytest.mark.fault("SPLIT-1")
@pytest.mark.parametrize("role", ["prompt", "token"])
async def test_degraded_mixed_serves_whole_and_says_so(
    serve: Serve, tmp_path: Path, role: Any, tokenizer: Tokenizer
) -> None:
    async with (
        FakeMachine(tmp_path, "only", role) as only,
        serve([only], degraded_mode="mixed") as front,
    ):
        play([only], tokenizer.encode("a", special=False))
        for _ in range(20):
            assert (await front.complete({"max_tokens": 2})).status == 200
        assert {leg.start.phase for leg in only.legs} == {"whole"}
        assert await front.metric('splitwise_routes_total{mode="whole"}') == 20
        assert await front.metric('splitwise_routes_total{mode="split"}') == 0


async def test_without_any_machine_a_request_waits_and_is_told(serve: Serve) -> None:
    async with serve(wait_for_machines_seconds=0.05) as front:
        reply = await front.chat({})
        assert reply.status == 503
        assert "the prompt pool and the token pool are empty" in reply.error["message"]
        assert "0.05 s" in reply.error["message"]


async def test_no_wait_at_all_is_possible(serve: Serve, pair: Pair) -> None:
    async with serve(pair[:1], wait_for_machines_seconds=0) as front:
        assert (await front.complete({})).status == 503
        front.expect_idle()


@pytest.mark.fault("SPLIT-4")
async def test_a_request_that_came_before_the_machines_is_served(
    serve: Serve, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    machines = FakeMachine(tmp_path, "prompt-0", "prompt"), FakeMachine(tmp_path, "token-0", "token")
    play(machines, tokenizer.encode("ab", special=False))
    async with serve(machines) as front:
        assert (await front.get("/readyz")).status == 503
        early = asyncio.create_task(front.complete({"max_tokens": 2}))
        try:
            await machines[0].start()
            await front.connected(1)
            await until(lambda: front.router.desk.waiting == 1)
            await machines[1].start()
            reply: Reply = await early
            assert reply.json["choices"][0]["text"] == "ab"
            assert (await front.get("/readyz")).status == 200
            front.expect_idle()
        finally:
            for machine in machines:
                await machine.lose()


async def test_a_wait_for_a_route_ends_with_the_client(serve: Serve, pair: Pair) -> None:
    async with serve(pair[:1], wait_for_machines_seconds=60) as front:
        answer = asyncio.create_task(front.complete({}))
        await until(lambda: front.router.desk.waiting == 1)
        answer.cancel()
        await until(lambda: front.router.desk.waiting == 0)
        await until(lambda: front.router.metrics.streams_open == 0)
        front.expect_idle()


async def test_what_no_machine_can_hold_is_the_clients_to_change(serve: Serve, tmp_path: Path) -> None:
    """The KV pool (64 tokens) is smaller than the model's context."""
    async with (
        FakeMachine(tmp_path, "m", "mixed", kv_blocks=4) as machine,
        serve([machine]) as front,
    ):
        reply = await front.complete({"prompt": [5] * 60, "max_tokens": 5})
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert "64 tokens" in reply.error["message"]
        chat = asyncio.create_task(front.chat({}))
        leg = await machine.leg()
        assert leg.start.sampling.max_tokens == 64 - len(leg.start.prompt)
        leg.send(5, end="stop")
        assert (await chat).status == 200
