"""Machines come, go, restart, drain and lie; the router follows without a restart of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from fake_machine import FakeMachine
from front import Serve, play, until
from runtime.config import MachineAddress
from runtime.router.output import Output, Piece
from runtime.tokenizer import Tokenizer
from runtime.wire import Load, Token

Pair = tuple[FakeMachine, FakeMachine]


class Told:
    """A discovery that is told of each new set."""

    def __init__(self, *machines: FakeMachine) -> None:
        self._sets: asyncio.Queue[Sequence[MachineAddress]] = asyncio.Queue()
        self.tell(*machines)

    def tell(self, *machines: FakeMachine) -> None:
        self._sets.put_nowait([MachineAddress(name=m.name, address=m.address) for m in machines])

    async def sets(self) -> AsyncIterator[Sequence[MachineAddress]]:
        while True:
            yield await self._sets.get()


@pytest.mark.fault("LINK-3")
async def test_a_machine_that_restarts_again_and_again_is_used_each_time(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    play(pair, tokenizer.encode("ab", special=False))
    async with serve(pair) as front:
        for _ in range(5):
            await pair[1].lose()
            await front.connected(1)
            await pair[1].start()
            assert (await front.complete({"max_tokens": 2})).status == 200
        assert await front.metric('splitwise_machines{role="token",state="ready"}') == 1
        front.expect_idle()


async def test_machines_join_and_leave_as_the_discovery_says(
    serve: Serve, pair: Pair, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    play(pair, tokenizer.encode("ab", special=False))
    told = Told(*pair)
    async with FakeMachine(tmp_path, "token-1", "token") as more, serve(discovery=told) as front:
        await front.connected(2)
        told.tell(*pair, more)
        await front.connected(3)
        told.tell(pair[0], more)
        await front.connected(2)
        await until(lambda: not pair[1].is_connected)
        play([more], tokenizer.encode("ab", special=False))
        assert (await front.complete({"max_tokens": 2})).status == 200
        assert (len(pair[1].legs), len(more.legs)) == (0, 1)


@pytest.mark.fault("DRAIN-2")
async def test_a_machine_that_leaves_finishes_what_it_has(
    serve: Serve, pair: Pair, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    a, b = tokenizer.encode("ab", special=False)
    told = Told(*pair)
    async with FakeMachine(tmp_path, "token-1", "token") as more, serve(discovery=told) as front:
        await front.connected(2)
        answer = asyncio.create_task(front.complete({"max_tokens": 2}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        told.tell(pair[0], more)
        await until(lambda: "token-1" in {load.name for load in front.router.fleet.loads()})
        assert pair[1].is_connected
        prompt.send(a, end="handoff")
        token.send(b, end="length")
        assert (await answer).json["choices"][0]["text"] == "ab"
        await until(lambda: not pair[1].is_connected)


async def test_a_machine_that_comes_back_while_it_leaves_is_a_new_one(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    """Dropped and listed again with a leg still open: the leg goes on, and new work goes there, too."""
    a, b = tokenizer.encode("ab", special=False)
    told = Told(*pair)
    async with serve(discovery=told) as front:
        await front.connected(2)
        answer = asyncio.create_task(front.complete({"max_tokens": 2}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        told.tell(pair[0])
        await front.connected(1)
        told.tell(*pair)
        await front.connected(2)
        prompt.send(a, end="handoff")
        token.send(b, end="length")
        assert (await answer).status == 200
        play(pair, [a, b])
        assert (await front.complete({"max_tokens": 2})).status == 200
        front.expect_idle()


@pytest.mark.fault("DRAIN-3")
async def test_a_draining_machine_gets_nothing_new(
    serve: Serve, pair: Pair, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    async with FakeMachine(tmp_path, "token-1", "token") as other, serve([*pair, other]) as front:
        play([*pair, other], tokenizer.encode("ab", special=False))
        pair[1].report(Load(draining=True))
        await front.connected(2)
        for _ in range(3):
            assert (await front.complete({"max_tokens": 2})).status == 200
        assert (len(pair[1].legs), len(other.legs)) == (0, 3)


@pytest.mark.fault("LEG-3")
async def test_reports_go_to_the_metrics_and_never_decide(
    serve: Serve, pair: Pair, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    async with FakeMachine(tmp_path, "token-1", "token") as other, serve([*pair, other]) as front:
        play([*pair, other], tokenizer.encode("ab", special=False))
        pair[1].report(Load(sequences_waiting=1000, kv_blocks=8, kv_blocks_used=8))
        await front.seen('splitwise_machine_load{machine="token-0",what="sequences_waiting"}', 1000)
        assert (await front.complete({"max_tokens": 2})).status == 200
        assert len(pair[1].legs) == 1


@pytest.mark.parametrize(
    ("other", "why"),
    [({"model": "another"}, "serves the model 'another'"), ({"vocabulary": 300}, "has 300 token ids")],
)
async def test_a_machine_of_another_model_is_never_used(
    serve: Serve,
    pair: Pair,
    tmp_path: Path,
    other: dict[str, object],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign = FakeMachine(tmp_path, "token-9", "token", **other)  # type: ignore[arg-type]
    async with foreign, serve(discovery=Told(*pair, foreign)) as front:
        await front.connected(2)
        await until(lambda: "machine not connected" in caplog.text)
        assert {load.name for load in front.router.fleet.loads()} == {"prompt-0", "token-0"}
        fields = [getattr(record, "splitwise_fields", {}) for record in caplog.records]
        assert any(why in entry.get("reason", "") for entry in fields)


@pytest.mark.fault("DRAIN-5")
async def test_only_machines_of_one_revision_work_together(serve: Serve, tmp_path: Path) -> None:
    async with (
        FakeMachine(tmp_path, "p", "prompt", revision="1") as old,
        FakeMachine(tmp_path, "t", "token", revision="2") as new,
        serve([old, new], wait_for_machines_seconds=0.05) as front,
    ):
        reply = await front.complete({})
        assert reply.status == 503
        assert "revision in common" in reply.error["message"]
        assert old.legs == new.legs == []


async def test_what_a_machine_says_of_a_cancelled_stream_is_ignored(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    async with serve(pair) as front:
        gone = asyncio.create_task(front.complete({"max_tokens": 9}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        gone.cancel()
        await token.cancelled.wait()
        prompt.send(5, end="handoff")
        token.send(5, 5, end="length")
        play(pair, tokenizer.encode("ab", special=False))
        assert (await front.complete({"max_tokens": 2})).json["choices"][0]["text"] == "ab"
        front.expect_idle()


async def test_a_broken_request_leaves_the_connection_to_the_others(
    serve: Serve, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a mistake of our own ends only the answer that it is made in."""
    push = Output.push

    def careless(self: Output, tokens: Sequence[Token], *, hide_last: bool = False) -> Piece | None:
        if tokens and tokens[0].id == 13:
            raise ZeroDivisionError
        return push(self, tokens, hide_last=hide_last)

    monkeypatch.setattr(Output, "push", careless)
    async with serve(pair) as front:
        good, bad = (asyncio.create_task(front.complete({"max_tokens": 2, "seed": seed})) for seed in (1, 2))
        legs = [(await pair[0].leg(), await pair[1].leg()) for _ in range(2)]
        for prompt, token in legs:
            prompt.send(5 if prompt.start.sampling.seed == 1 else 13, end="handoff")
            token.send(5, end="length")
        assert (await good).status == 200
        assert ((await bad).status, (await bad).error["code"]) == (500, "engine_failure")
        assert len(front.router.fleet.loads()) == 2
        front.expect_idle()
