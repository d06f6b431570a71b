"""Clients that leave, that read slowly, and what that costs everyone else."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_machine import FakeLeg, FakeMachine
from front import Front, Serve, play, until
from runtime.tokenizer import Tokenizer

Pair = tuple[FakeMachine, FakeMachine]
SMALL_BUFFER = 4096


@asynccontextmanager
async def raw_stream(front: Front, version: str = "1.1", **asked: Any) -> AsyncIterator[asyncio.StreamReader]:
    """A streamed completion on a socket that takes in next to nothing unread."""
    body = json.dumps({"model": "tiny", "prompt": [5], "stream": True} | asked).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    client.setblocking(False)
    host, port = front.url.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=client, limit=SMALL_BUFFER)
    writer.write(
        f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    try:
        yield reader
    finally:
        writer.transport.abort()


@pytest.mark.fault("STREAM-1", "STREAM-4")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", ["nothing", "the first token", "some tokens"])
async def test_a_client_that_leaves_ends_both_legs_at_once(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool, after: str
) -> None:
    a, b = tokenizer.encode("ab", special=False)
    async with serve(pair) as front:
        async with raw_stream(front, stream=stream, max_tokens=50):
            prompt, token = await pair[0].leg(), await pair[1].leg()
            open_legs = [prompt, token]
            if after != "nothing":
                prompt.send(a, end="handoff")
                open_legs = [token]
                await front.seen("splitwise_ttft_seconds_count", 1)
            if after == "some tokens":
                token.send(b, b)
                await front.seen("splitwise_tbt_seconds_count", 1)
        async with asyncio.timeout(5):
            for leg in open_legs:
                await leg.cancelled.wait()
        await until(lambda: front.router.metrics.streams_open == 0)
        front.expect_idle()
        assert await front.metric('splitwise_requests_total{endpoint="completion",outcome="cancelled"}') == 1


@pytest.mark.fault("STREAM-1")
async def test_many_that_left_leave_nothing_before_the_next(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    async with serve(pair) as front:
        answers = [asyncio.create_task(front.complete({"prompt": [5] * 4000})) for _ in range(10)]
        gone = [(await pair[0].leg(), await pair[1].leg()) for _ in answers]
        assert front.router.books.open_bookings() == 20
        for answer in answers:
            answer.cancel()
        async with asyncio.timeout(5):
            for legs in gone:
                for leg in legs:
                    await leg.cancelled.wait()
        front.expect_idle()
        short = asyncio.create_task(front.complete({"max_tokens": 1}))
        (await pair[0].leg()).send(*tokenizer.encode("a"), end="length")
        assert (await short).status == 200


@pytest.mark.fault("LEG-4")
async def test_a_burst_is_spread_by_the_books_alone(
    serve: Serve, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """No machine reports anything; forty requests at once still go to the shortest queues."""
    machines = [
        FakeMachine(tmp_path, f"{role[0]}{n}", role) for role in ("prompt", "token") for n in range(2)
    ]
    for machine in machines:
        await machine.start()
    try:
        async with serve(machines) as front:
            answers = [asyncio.create_task(front.complete({"max_tokens": 2})) for _ in range(40)]
            await until(lambda: sum(len(machine.legs) for machine in machines) == 80)
            assert [len(machine.legs) for machine in machines] == [20] * 4
            for machine in machines:
                for leg in machine.legs:
                    leg.send(5, end="handoff" if leg.start.phase == "prompt" else "length")
            assert [(await answer).status for answer in answers] == [200] * 40
            front.expect_idle()
    finally:
        for machine in machines:
            await machine.lose()


@pytest.mark.fault("STREAM-4")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ends", ["in full", "in failure"])
async def test_an_answer_may_be_finished_without_its_client(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool, ends: str
) -> None:
    """More tokens than there is credit: nobody reads, and still they flow."""
    a, b = tokenizer.encode("ab", special=False)
    settings = {"client_disconnect": "finish", "stream_credit_tokens": 8, "restarts": 0}
    async with serve(pair, **settings) as front:
        async with raw_stream(front, stream=stream, max_tokens=50):
            prompt, token = await pair[0].leg(), await pair[1].leg()
            prompt.send(a, end="handoff")
            await front.seen("splitwise_ttft_seconds_count", 1)
        await front.get("/healthz")  # by when the router knows that the client is gone
        for _ in range(48):
            await token.room()
            token.send(b)
        if ends == "in failure":
            token.fail("engine_failure")
        else:
            await token.room()
            token.send(b, end="length")
        await until(lambda: front.router.metrics.streams_open == 0)
        assert not token.cancelled.is_set()
        front.expect_idle()
        assert await front.metric('splitwise_requests_total{endpoint="completion",outcome="cancelled"}') == 1
        assert await front.metric("splitwise_output_tokens_total") == (50 if ends == "in full" else 49)


# ---- credit


async def test_credit_comes_back_as_the_client_reads(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    play(pair, tokenizer.encode("abc", special=False))
    async with serve(pair, stream_credit_tokens=4) as front:
        for stream in (True, False):
            reply = await front.complete({"max_tokens": 50, "stream": stream})
            assert reply.status == 200
            assert len(reply.events if stream else reply.json["choices"][0]["text"]) == 50


async def stalled(leg: FakeLeg) -> int:
    """Wait until the leg gets nowhere any more, for want of credit; returns how far it came."""
    async with asyncio.timeout(30):
        while True:
            before = leg.index
            await asyncio.sleep(0.2)
            if leg.index == before and leg.credit < 1:
                return before


async def test_a_slow_reader_stops_its_own_machine_and_nobody_elses(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    """Chunks of 2 kB; what waits is bounded by the socket's buffers and 64 tokens of credit."""
    tokens = 8000
    play(pair, tokenizer.encode("abc", special=False))
    async with serve(pair, stream_credit_tokens=64) as front:
        async with raw_stream(front, max_tokens=tokens, logprobs=20) as reader:
            leg = await pair[1].leg()
            assert await stalled(leg) < tokens
            quick = await front.complete({"max_tokens": 100, "stream": True})
            assert len(quick.events) == 100
            text = b""
            while b"[DONE]" not in text[-200:]:
                text = text[-200:] + await reader.read(1 << 20)
            assert leg.index == tokens
        await until(lambda: front.router.metrics.streams_open == 0)
        front.expect_idle()


async def test_a_client_that_never_reads_is_cut_off(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.router.app.READ_ON_SECONDS", 0.1)
    play(pair, tokenizer.encode("abc", special=False))
    async with (
        serve(pair, stream_credit_tokens=64, request_timeout_seconds=1) as front,
        raw_stream(front, max_tokens=8000, logprobs=20),
    ):
        leg = await pair[1].leg()
        async with asyncio.timeout(20):
            await leg.cancelled.wait()
        await until(lambda: front.router.metrics.streams_open == 0)
        front.expect_idle()


# ---- framing


async def test_an_old_client_gets_a_stream_without_chunks(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    play(pair, tokenizer.encode("ab", special=False))
    async with serve(pair) as front, raw_stream(front, "1.0", max_tokens=2) as reader:
        head, *events = (await reader.read(-1)).decode().split("\r\n\r\n")
        assert "chunked" not in head.lower()
        assert [event[:6] for event in events[0].strip().split("\n\n")] == ["data: "] * 3


async def test_a_connection_serves_one_stream_after_another(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    """Our own chunks leave the connection usable."""
    play(pair, tokenizer.encode("ab", special=False))
    async with serve(pair) as front:
        for _ in range(3):
            assert len((await front.complete({"max_tokens": 2, "stream": True})).events) == 2
        assert len(front.connections_made) == 1
