"""What the router costs: CPU per request and per chunk, added delay, memory of an idle stream, disconnects.

    python -m bench.router [--quick] [--rounds N]

A real router process between a raw client and machines without engines; the two latter share this process,
so the router has a core for itself where there are two. CPU is the router's own (/proc), which a busy
computer disturbs less than wall time; ratios to production-stack's router are taken within a round. Delay
is measured from the beat at which a machine sent a token, and once more on a link without a router.
"""

import argparse
import asyncio
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from bench.fake_machine import QUIET
from bench.load import Client, connect, get, hang_up, percentile, request
from bench.subjects import Ours, Subject, ours, peer, peer_command
from runtime.link import Connection, Hello, dial, host_id
from runtime.wire import Sampling, Start, Step

BEAT_MS = 20
IDLE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent in a round."""

    requests: int = 3200
    connections: int = 32
    streams: int = 64
    crowd: int = 512
    beats: int = 150
    idle: int = 2000
    leavers: int = 20


QUICK = Size(requests=640, crowd=128, beats=40, idle=200)


@dataclass(frozen=True, slots=True)
class Costs:
    """One router in one round: microseconds of CPU, and milliseconds between beat and client."""

    request_us: float
    chunk_us: float
    crowd_chunk_us: float
    late_p50_ms: float
    late_p99_ms: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Silent streams: bytes for each, and milliseconds until a machine hears that one has left."""

    stream_kb: float
    leave_ms: float


# ---- measurements


async def costs(subject: Subject, size: Size) -> Costs:
    late: list[float] = []
    return Costs(
        await short_requests(subject, size),
        await streamed(subject, size.streams, size.beats, late),
        await streamed(subject, size.crowd, size.beats, []),
        percentile(late, 0.5) * 1e3,
        percentile(late, 0.99) * 1e3,
    )


def _body(*, tokens: int, beat: int, stream: bool) -> bytes:
    asked = {
        "model": "bench",
        "prompt": "the sea and the wind",
        "max_tokens": tokens,
        "seed": beat,
        "stream": stream,
    }
    return request("/v1/completions", asked)


async def short_requests(subject: Subject, size: Size) -> float:
    """Short answers that aren't streamed, over connections that are kept: µs of CPU for each."""
    raw = _body(tokens=8, beat=0, stream=False)
    clients = [await connect(subject.port, Client()) for _ in range(size.connections)]

    async def ask(client: Client, count: int) -> None:
        for _ in range(count):
            await client.send(raw, whole=True)

    await asyncio.gather(*(ask(client, 5) for client in clients))
    each = size.requests // size.connections
    before = subject.cpu_seconds()
    await asyncio.gather(*(ask(client, each) for client in clients))
    cpu = subject.cpu_seconds() - before
    hang_up(clients)
    return cpu / (each * size.connections) * 1e6


async def streamed(subject: Subject, streams: int, beats: int, late: list[float]) -> float:
    """So many streams at once, a chunk for each at every beat: µs of CPU per chunk. `late` takes how many
    seconds after its beat each chunk came."""
    chunks = 0

    def heard(at: float, count: int) -> None:
        nonlocal chunks
        chunks += count
        late.append(at % (BEAT_MS / 1000))

    clients = [await connect(subject.port, Client(heard)) for _ in range(streams)]
    raw = _body(tokens=beats, beat=BEAT_MS, stream=True)
    before = subject.cpu_seconds()
    await asyncio.gather(*(client.send(raw, whole=False) for client in clients))
    cpu = subject.cpu_seconds() - before
    hang_up(clients)
    return cpu / chunks * 1e6


async def direct(router: Ours, streams: int, beats: int) -> tuple[float, float]:
    """The same tokens on a link of our own: how late they are without a router, in ms (p50, p99)."""
    late: list[float] = []
    left, ended = streams, asyncio.Event()

    class Handler:
        def received(self, connection: Connection, message: Any) -> None:
            nonlocal left
            late.extend([time.monotonic() % (BEAT_MS / 1000)] * len(message.events))
            left -= sum(event.end is not None for event in message.events)
            if left == 0:
                ended.set()

        def closed(self, connection: Connection, reason: str) -> None:
            ended.set()

    hello = Hello("router", "bench", secrets.token_hex(8), host_id())
    connection = await dial(
        router.token_address, hello=hello, secret=router.secret, inbound=Step, handler=Handler()
    )
    sampling = Sampling(max_tokens=beats, seed=BEAT_MS)
    for stream in range(streams):
        connection.send(Start(stream, "bench", "token", [1], sampling, 600.0, 1 << 20, transfer=str(stream)))
    await ended.wait()
    connection.close("measured")
    return percentile(late, 0.5) * 1e3, percentile(late, 0.99) * 1e3


async def idle_streams(router: Ours, size: Size) -> Idle:
    """Streams that wait for their first token."""
    raw = _body(tokens=100, beat=QUIET, stream=True)
    before = router.pss_bytes()
    clients = [await connect(router.port, Client()) for _ in range(size.idle)]
    waits = [client.send(raw, whole=False) for client in clients]
    async with asyncio.timeout(IDLE_SECONDS):
        while await _streams_open(router) < size.idle:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    each = (router.pss_bytes() - before) / size.idle
    seconds = [await _leave(router, client) for client in clients[: size.leavers]]
    hang_up(clients)
    await asyncio.gather(*waits, return_exceptions=True)
    return Idle(each / 1000, median(seconds) * 1e3)


async def _leave(router: Ours, client: Client) -> float:
    """Hang up on a silent stream; seconds until the token machine has the cancellation."""
    heard = asyncio.Event()
    router.token_machine.on_cancel = heard.set
    begun = time.monotonic()
    hang_up([client])
    await heard.wait()
    return time.monotonic() - begun


async def _streams_open(router: Ours) -> float:
    lines = (await get(router.port, "/metrics")).decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("splitwise_streams_open "))


# ---- the table


@dataclass(frozen=True, slots=True)
class Round:
    """One turn at everything."""

    mine: Costs
    others: Costs | None
    direct_ms: tuple[float, float]


def table(rounds: Sequence[Round], idle: Idle) -> Table:
    """Medians over the rounds, ratios within each, and the goals."""
    made = Table("what", "ours", "production-stack", "ratio", "goal")
    for what, name, goal in (
        ("CPU per short request", "request_us", "8 x or more"),
        ("CPU per chunk, fewer streams", "chunk_us", "3 x or more"),
        ("CPU per chunk, more streams", "crowd_chunk_us", "3 x or more"),
    ):
        mine = median(getattr(one.mine, name) for one in rounds)
        pairs = [(getattr(one.mine, name), getattr(one.others, name)) for one in rounds if one.others]
        others = f"{median(theirs for _, theirs in pairs):.1f} µs" if pairs else "-"
        ratio = f"{median(theirs / own for own, theirs in pairs):.1f} x" if pairs else "-"
        made.add_row(what, f"{mine:.1f} µs", others, ratio, goal)
    for what, name, place, goal in (
        ("added delay, p50", "late_p50_ms", 0, ""),
        ("added delay, p99", "late_p99_ms", 1, "0.3 ms or less"),
    ):
        added = median(getattr(one.mine, name) - one.direct_ms[place] for one in rounds)
        made.add_row(what, f"{added:.2f} ms", "", "", goal)
    made.add_row("memory per idle stream", f"{idle.stream_kb:.1f} kB", "", "", "20 kB or less")
    made.add_row("disconnect heard by the machine", f"{idle.leave_ms:.2f} ms", "", "", "5 ms or less")
    return made


async def measure(size: Size, count: int) -> tuple[list[Round], Idle]:
    command = peer_command()
    rounds = []
    for _ in range(count):
        others = None
        if command:
            async with peer(command) as subject:
                others = await costs(subject, size)
        async with ours() as router:
            mine = await costs(router, size)
            rounds.append(Round(mine, others, await direct(router, size.streams, size.beats)))
    async with ours() as router:
        await short_requests(router, size)
        return rounds, await idle_streams(router, size)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.router", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fraction of the load, in seconds")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    rounds, idle = uvloop.run(measure(size, options.rounds))
    console = Console()
    console.print(table(rounds, idle))
    console.print(
        f"{options.rounds} rounds, {size.streams} and {size.crowd} streams, {os.cpu_count()} cores, "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    if not rounds[0].others:
        console.print("production-stack's router (vllm-router) is not installed, so there is nothing beside.")


if __name__ == "__main__":
    main()
