"""What the router costs: CPU per request and per chunk, added delay, memory of an idle stream, disconnects.

    python -m bench.router [--quick]

A real router process between a raw client and machines without engines; the two latter share this process,
so the router has a core for itself where there are two. CPU is the router's own (/proc), which a busy
computer disturbs less than wall time. Delay is measured from the beat at which a machine sent a token, and
once more on a link without a router; the difference is what the router adds.
"""

import argparse
import asyncio
import json
import os
import secrets
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.fake_machine import QUIET, FakeMachine
from bench.load import Client, connect, percentile, request
from runtime.link import Connection, Hello, dial, host_id
from runtime.wire import Start, Step

BEAT_MS = 20
WORDS = "the sea and the wind of the north are what the old man of the boat knows best of all " * 4


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sent."""

    requests: int = 6000
    connections: int = 32
    streams: int = 64
    crowd: int = 512
    beats: int = 150
    idle: int = 2000
    leavers: int = 20


QUICK = Size(requests=600, crowd=128, beats=40, idle=200)


@dataclass(frozen=True, slots=True)
class Row:
    """One result beside its goal."""

    what: str
    measured: str
    goal: str


@dataclass(frozen=True, slots=True)
class Bench:
    """The running pieces."""

    pid: int
    port: int
    token_machine: FakeMachine
    token_address: str
    secret: bytes
    size: Size

    def cpu_seconds(self) -> float:
        """Of the router's threads, so far."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def pss_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024

    def body(self, *, tokens: int, beat: int, stream: bool) -> bytes:
        asked = {"model": "bench", "prompt": WORDS, "max_tokens": tokens, "seed": beat, "stream": stream}
        return request("/v1/completions", asked)


# ---- measurements


async def short_requests(bench: Bench) -> list[Row]:
    """Many short answers, not streamed, over connections that are kept."""
    size = bench.size
    raw = bench.body(tokens=8, beat=0, stream=False)
    clients = [await connect(bench.port, Client()) for _ in range(size.connections)]

    async def ask(client: Client, count: int) -> None:
        for _ in range(count):
            await client.send(raw, whole=True)

    await asyncio.gather(*(ask(client, 5) for client in clients))
    before, begun = bench.cpu_seconds(), time.monotonic()
    each = size.requests // size.connections
    await asyncio.gather(*(ask(client, each) for client in clients))
    seconds, cpu = time.monotonic() - begun, bench.cpu_seconds() - before
    _hang_up(clients)
    done = each * size.connections
    return [
        Row("CPU per short request", f"{cpu / done * 1e6:.0f} µs", "139 µs (1/8 of production-stack's 1110)"),
        Row("short requests per second", f"{done / seconds:.0f}", ""),
    ]


async def streamed(bench: Bench, streams: int) -> list[Row]:
    """So many streams at once, a chunk for each at every beat."""
    late: list[float] = []
    chunks = 0

    def heard(at: float, count: int) -> None:
        nonlocal chunks
        chunks += count
        late.append(at % (BEAT_MS / 1000))

    clients = [await connect(bench.port, Client(heard)) for _ in range(streams)]
    raw = bench.body(tokens=bench.size.beats, beat=BEAT_MS, stream=True)
    before = bench.cpu_seconds()
    await asyncio.gather(*(client.send(raw, whole=False) for client in clients))
    cpu = bench.cpu_seconds() - before
    _hang_up(clients)
    direct = await _direct(bench, streams)
    added = [percentile(late, share) - percentile(direct, share) for share in (0.5, 0.99)]
    goal = {64: ("19.6 µs (1/3 of 58.9)", "p99 0.3 ms"), 512: ("14.2 µs (1/3 of 42.7)", "")}
    cpu_goal, delay_goal = goal.get(streams, ("", ""))
    return [
        Row(f"CPU per chunk, {streams} streams", f"{cpu / chunks * 1e6:.1f} µs", cpu_goal),
        Row(
            f"added delay, {streams} streams",
            f"p50 {added[0] * 1e3:.2f} ms, p99 {added[1] * 1e3:.2f} ms",
            delay_goal,
        ),
    ]


async def _direct(bench: Bench, streams: int) -> list[float]:
    """The same tokens on a link of our own: how late they are without any router."""
    late: list[float] = []
    left = streams
    ended = asyncio.Event()

    class Handler:
        def received(self, connection: Connection, message: Any) -> None:
            nonlocal left
            at = time.monotonic() % (BEAT_MS / 1000)
            late.extend([at] * len(message.events))
            left -= sum(event.end is not None for event in message.events)
            if left == 0:
                ended.set()

        def closed(self, connection: Connection, reason: str) -> None:
            ended.set()

    hello = Hello("router", "bench", secrets.token_hex(8), host_id())
    connection = await dial(
        bench.token_address, hello=hello, secret=bench.secret, inbound=Step, handler=Handler()
    )
    sampling = _sampling(bench.size.beats)
    for stream in range(streams):
        connection.send(Start(stream, "bench", "token", [1], sampling, 600.0, 1 << 20, transfer=str(stream)))
    await ended.wait()
    connection.close("measured")
    return late


def _sampling(tokens: int) -> Any:
    from runtime.wire import Sampling

    return Sampling(max_tokens=tokens, seed=BEAT_MS)


async def idle_streams(bench: Bench) -> list[Row]:
    """Streams that wait for a first token: their memory, and how soon the machine hears of one that leaves."""
    size = bench.size
    raw = bench.body(tokens=100, beat=QUIET, stream=True)
    await asyncio.sleep(1)
    before = bench.pss_bytes()
    clients = [await connect(bench.port, Client()) for _ in range(size.idle)]
    waits = [client.send(raw, whole=False) for client in clients]
    while await _metric(bench, "splitwise_streams_open ") < size.idle:
        await asyncio.sleep(0.1)
    each = (bench.pss_bytes() - before) / size.idle
    seconds = [await _leave(bench, client) for client in clients[: size.leavers]]
    _hang_up(clients)
    await asyncio.gather(*waits, return_exceptions=True)
    return [
        Row("memory per idle stream", f"{each / 1000:.1f} kB", "20 kB"),
        Row("disconnect heard by the machine", f"{statistics.median(seconds) * 1e3:.2f} ms", "5 ms"),
    ]


async def _leave(bench: Bench, client: Client) -> float:
    """Hang up on a silent stream; seconds until the token machine has the cancellation."""
    heard = asyncio.Event()
    bench.token_machine.on_cancel = heard.set
    begun = time.monotonic()
    _hang_up([client])
    await heard.wait()
    return time.monotonic() - begun


async def _metric(bench: Bench, series: str) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(series))


def _hang_up(clients: list[Client]) -> None:
    for client in clients:
        if client.transport is not None:
            client.transport.abort()


# ---- the pieces


@asynccontextmanager
async def running(size: Size) -> AsyncIterator[Bench]:
    """A router process over one prompt machine and one token machine."""
    with tempfile.TemporaryDirectory(prefix="splitwise-bench-") as name:
        folder = Path(name)
        token = _write_model(folder)
        secret = secrets.token_hex(32).encode()
        (folder / "secret").write_bytes(secret)
        prompts, tokens = FakeMachine("prompt-0", "prompt", token), FakeMachine("token-0", "token", token)
        listeners = [
            await machine.listen(f"unix:{folder}/{machine.name}.sock", secret)
            for machine in (prompts, tokens)
        ]
        port = _free_port()
        process = await _router(folder, port)
        try:
            await _ready(port)
            yield Bench(process.pid, port, tokens, f"unix:{folder}/token-0.sock", secret, size)
        finally:
            process.kill()
            await process.wait()
            for listener in listeners:
                await listener.close()


def _write_model(folder: Path) -> int:
    """A byte-level tokenizer of words enough for the prompt; returns the id of a token to answer with."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: id for id, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([" token"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(alphabet)


async def _router(folder: Path, port: int) -> asyncio.subprocess.Process:
    config = folder / "router.json"
    settings = {
        "listen": f"127.0.0.1:{port}",
        "model": {"name": "bench", "path": str(folder)},
        "link": {"secret_file": str(folder / "secret")},
        "machines": [
            {"name": name, "address": f"unix:{folder}/{name}.sock"} for name in ("prompt-0", "token-0")
        ],
    }
    config.write_text(json.dumps(settings))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runtime.router", "--config", str(config), stderr=asyncio.subprocess.DEVNULL
    )


async def _ready(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                await asyncio.sleep(0.05)
                continue
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            if b" 200 " in answer:
                return
            await asyncio.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def measure(size: Size) -> list[Row]:
    async with running(size) as bench:
        rows = await short_requests(bench)
        rows += await streamed(bench, size.streams)
        rows += await streamed(bench, size.crowd)
        rows += await idle_streams(bench)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.router", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, in seconds")
    options = parser.parse_args()
    rows = uvloop.run(measure(QUICK if options.quick else Size()))
    table = Table(
        "what", "measured", "goal", title=f"router, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for row in rows:
        table.add_row(row.what, row.measured, row.goal)
    console = Console()
    console.print(table)
    if not (which("vllm-router") or find_spec("vllm_router")):
        console.print("production-stack's router (vllm-router) is not installed, so there is no row for it.")


if __name__ == "__main__":
    main()
