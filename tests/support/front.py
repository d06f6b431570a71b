"""A real router on a real port in this process, and a client for it.

async with serving(folder, model, tokenizer, machines) as front:
    reply = await front.complete({"max_tokens": 3})
    front.expect_idle()
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from fake_machine import FakeMachine, write_secret
from runtime.config import LinkSettings, MachineAddress, ModelSettings, RouterSettings
from runtime.router.app import App
from runtime.router.discovery import Discovery
from runtime.router.router import Router
from runtime.tokenizer import Tokenizer

SECONDS = 30.0
TRACE = {"X-Splitwise-Trace": "1"}


@dataclass
class Reply:
    """A response, read to its end."""

    status: int
    headers: Any
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The objects of a stream that ended with [DONE]."""
        lines = [line.removeprefix("data: ") for line in self.raw.decode().split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


class Front:
    """A running router and a client for it."""

    def __init__(
        self, router: Router, url: str, session: aiohttp.ClientSession, connections_made: list[object]
    ) -> None:
        self.router = router
        self.url = url
        self.session = session
        self.connections_made = connections_made

    async def exchange(self, sent: bytes) -> tuple[str, str]:
        """Send bytes and read until the router hangs up: the head, and what follows."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(SECONDS):
            writer.write(sent)
            head, _, rest = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return head, rest

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    async def complete(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> Reply:
        return await self.post("/v1/completions", {"model": "tiny", "prompt": "The machine"} | body, headers)

    async def open_stream(self, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """A streamed completion; returns with the first words, to be read by the test."""
        asked = {"model": "tiny", "prompt": "The machine", "stream": True} | body
        return await self.session.post(f"{self.url}/v1/completions", json=asked)

    async def chat(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> Reply:
        messages = [{"role": "user", "content": "How many?"}]
        return await self.post(
            "/v1/chat/completions", {"model": "tiny", "messages": messages} | body, headers
        )

    async def get(self, path: str) -> Reply:
        async with self.session.get(self.url + path) as response:
            return Reply(response.status, response.headers, await response.read())

    async def connected(self, count: int) -> None:
        """Until so many machines are usable."""
        await until(lambda: len(self.router.fleet.loads()) == count)

    async def metric(self, series: str) -> float:
        """The value of a series; 0 if there is none."""
        lines = (await self.get("/metrics")).raw.decode().splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{series} ")), 0.0)

    async def seen(self, series: str, value: float) -> None:
        """Until a series has reached a value."""
        async with asyncio.timeout(SECONDS):
            while await self.metric(series) < value:
                pass

    def expect_idle(self) -> None:
        """Nothing is booked, waited for, or open."""
        assert self.router.books.open_bookings() == 0
        assert self.router.desk.waiting == 0
        assert self.router.metrics.streams_open == 0
        assert all(machine.legs == 0 for machine in self.router.fleet.machines.values())
        for machine in self.router.fleet.loads():
            assert (machine.pending_tokens, machine.kv_tokens) == (0, 0)


def play(machines: Sequence[FakeMachine], ids: Sequence[int], *, end: int = -1) -> None:
    """Let the machines serve by themselves: these output tokens, over and over; `end` is the end token."""
    for machine in machines:
        machine.plays = lambda index: ids[index % len(ids)]
        machine.end_token = end


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come true."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - conditions have no events
            await asyncio.sleep(0.002)


Serve = Callable[..., AbstractAsyncContextManager[Front]]


@asynccontextmanager
async def serving(
    folder: Path,
    model: Path,
    tokenizer: Tokenizer,
    machines: Sequence[FakeMachine] = (),
    *,
    discovery: Discovery | None = None,
    **settings: Any,
) -> AsyncIterator[Front]:
    """A router over these machines, connected to all that listen."""
    router = Router(
        RouterSettings(
            model=ModelSettings(name="tiny", path=model),
            link=LinkSettings(secret_file=write_secret(folder)),
            machines=tuple(MachineAddress(name=m.name, address=m.address) for m in machines),
            **settings,
        ),
        tokenizer,
        discovery,
    )
    running = asyncio.create_task(router.run())
    runner = web.ServerRunner(App(router).server(), shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        connections: list[object] = []

        async def connected(*about: object) -> None:
            connections.append(about)

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(connected)
        timeout = aiohttp.ClientTimeout(SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trace_configs=[trace]) as session:
            front = Front(router, url, session, connections)
            await front.connected(sum(machine.is_listening for machine in machines))
            yield front
    finally:
        await runner.cleanup()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
