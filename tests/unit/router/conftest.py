"""A real router on a real port, over fake machines on real links."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import tiny_llama
from fake_machine import FakeMachine, write_secret
from runtime.config import LinkSettings, MachineAddress, ModelSettings, RouterSettings
from runtime.router.app import App
from runtime.router.router import Router
from runtime.tokenizer import Tokenizer, load

SECONDS = 10.0
TRACE = {"X-Splitwise-Trace": "1"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.make(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    return load(model)


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

    def __init__(self, router: Router, url: str, session: aiohttp.ClientSession) -> None:
        self.router = router
        self.url = url
        self.session = session

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, headers=headers) as response:
            return Reply(response.status, response.headers, await response.read())

    async def complete(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> Reply:
        return await self.post("/v1/completions", {"model": "tiny", "prompt": "The machine"} | body, headers)

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

    def expect_idle(self) -> None:
        """Nothing is booked, waited for, or open."""
        assert self.router.books.open_bookings() == 0
        assert self.router.desk.waiting == 0
        assert self.router.metrics.streams_open == 0
        assert all(machine.legs == 0 for machine in self.router.fleet.machines.values())
        for machine in self.router.fleet.loads():
            assert (machine.pending_tokens, machine.kv_tokens) == (0, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come true."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - conditions have no events
            await asyncio.sleep(0.002)


Serve = Callable[..., Any]


@pytest.fixture
def serve(tmp_path: Path, model: Path, tokenizer: Tokenizer) -> Serve:
    """`async with serve(machines, setting=...) as front`: a router over these machines, connected."""

    @asynccontextmanager
    async def _serve(machines: Sequence[FakeMachine] = (), **settings: Any) -> AsyncIterator[Front]:
        router = Router(
            RouterSettings(
                model=ModelSettings(name="tiny", path=model),
                link=LinkSettings(secret_file=write_secret(tmp_path)),
                machines=tuple(MachineAddress(name=m.name, address=m.address) for m in machines),
                **settings,
            ),
            tokenizer,
        )
        running = asyncio.create_task(router.run())
        runner = web.AppRunner(
            App(router).application, handler_cancellation=True, access_log=None, shutdown_timeout=1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://{}:{}".format(*runner.addresses[0][:2])
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as session:
            front = Front(router, url, session)
            await front.connected(sum(machine.is_listening for machine in machines))
            yield front
        await runner.cleanup()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    return _serve


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[FakeMachine, FakeMachine]]:
    """A prompt machine and a token machine, driven by the test."""
    async with (
        FakeMachine(tmp_path, "prompt-0", "prompt") as prompt,
        FakeMachine(tmp_path, "token-0", "token") as token,
    ):
        yield prompt, token
