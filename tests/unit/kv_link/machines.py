"""A machine with a KV link and nothing else, for tests: records its news, knows what blocks should hold."""

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from runtime.config import LinkSettings, TransferSettings
from runtime.kv_link.endpoint import KvLink
from runtime.kv_link.layout import Layout
from runtime.kv_link.pool import Pool
from runtime.kv_link.put import Put
from runtime.kv_link.runs import Run
from runtime.kv_link.transport import Faults, Limits
from runtime.link import Connection, Hello, Keyring, Listener, Pulse, host_id, listen
from runtime.wire import Token, Transfer

Way = Literal["auto", "shm", "tcp"]
LAYOUT = Layout(
    model="tiny", revision="1", format="test", dtype="float32", layers=3, kv_heads=2, head_dim=4,
    block_tokens=2, block_bytes=128, blocks=32,
)  # fmt: skip
BIG = structs.replace(LAYOUT, blocks=64, block_bytes=256 * 1024)
LAYOUTS = {"small": LAYOUT, "big": BIG}
QUICK = Limits(fence_after=0.3, open_within=2.0, retry_least=0.01, retry_most=0.1)
WITHIN = 10.0


class News:
    """A KvEvents that remembers everything, in order, and wakes who waits for it."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []
        self.puts: dict[str, Put] = {}
        self._found: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._waiting: dict[tuple[str, str], asyncio.Event] = {}

    def arrived(self, transfer: str, first: Token, stats: Transfer) -> None:
        self._note("arrived", transfer, first, stats)

    def transfer_failed(self, transfer: str, reason: str) -> None:
        self._note("failed", transfer, reason)

    def fenced(self, transfer: str) -> None:
        self._note("fenced", transfer)

    def ticket(self, transfer: str, put: Put) -> None:
        self.puts[transfer] = put
        self._note("ticket", transfer, put)

    def drained(self, transfer: str) -> None:
        self._note("drained", transfer)

    def kinds(self, transfer: str) -> list[str]:
        return [kind for kind, name, *_ in self.all if name == transfer]

    def find(self, kind: str, transfer: str) -> tuple[Any, ...] | None:
        return self._found.get((kind, transfer))

    def forget_all(self) -> None:
        self.all.clear()
        self.puts.clear()
        self._found.clear()

    async def of(self, kind: str, transfer: str, within: float = WITHIN) -> tuple[Any, ...]:
        """The first news of this kind; fails when it does not come in time."""
        key = (kind, transfer)
        if key not in self._found:
            async with asyncio.timeout(within):
                await self._waiting.setdefault(key, asyncio.Event()).wait()
        return self._found[key]

    def _note(self, *news: Any) -> None:
        self.all.append(news)
        self._found.setdefault(news[:2], news)
        if waiting := self._waiting.pop(news[:2], None):
            waiting.set()


class Machine:
    """`await start()`, then `address` takes calls."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        way: Way = "auto",
        layout: Layout = LAYOUT,
        shared: bool = True,
        limits: Limits = QUICK,
        faults: Faults | None = None,
        host: str | None = None,
        threshold: int = 0,
        dead_after: float = 5.0,
        listen_on: str = "127.0.0.1:0",
        run_dir: Path | None = None,
        data_host: str = "127.0.0.1",
        news: News | None = None,
    ) -> None:
        secret = folder / "secret"
        secret.write_bytes(b"s" * 32)
        self.name = name
        self.news = news or News()
        self.layout = layout
        self.pool = Pool.shared(layout) if shared else Pool.over(layout, bytearray(layout.total_bytes))
        self.address = listen_on
        self._link = LinkSettings(
            secret_file=secret, heartbeat_seconds=min(0.5, dead_after / 3), dead_after_seconds=dead_after
        )
        self.kv = KvLink(
            name=name,
            pool=self.pool,
            settings=TransferSettings(transport=way, data_host=data_host, layerwise_above_tokens=threshold),
            link=self._link,
            events=self.news,
            run_dir=run_dir,
            limits=limits,
            faults=faults or Faults(),
        )
        self.host = host or host_id()
        if host:
            self.kv._me = structs.replace(self.kv._me, host=host)
        self.connections: list[Connection] = []
        self._listener: Listener | None = None

    async def start(self) -> None:
        await self.kv.start()
        self._listener = await listen(
            self.address,
            hello=lambda caller: self.kv._me,
            secret=Keyring(self._link.secret_file),
            accept=self._accept,
            pulse=Pulse(self._link.heartbeat_seconds, self._link.dead_after_seconds),
        )
        self.address = self._listener.address

    async def stop(self) -> None:
        async with asyncio.timeout(WITHIN):
            if self._listener:
                await self._listener.close()
            await self.kv.close()
            self.pool.close()

    def fill(self, blocks: list[int], what: str) -> None:
        """Write what `what`'s logical block i should hold into blocks[i], all layers."""
        for layer in range(self.layout.layers):
            for logical, block in enumerate(blocks):
                self.pool.blocks(layer, block, 1)[:] = content(self.layout, what, layer, logical)

    def holds(self, blocks: list[int], what: str) -> bool:
        return all(
            bytes(self.pool.blocks(layer, block, 1)) == content(self.layout, what, layer, logical)
            for layer in range(self.layout.layers)
            for logical, block in enumerate(blocks)
        )

    def _accept(self, hello: Hello) -> Any:
        inbound, handler_of = self.kv.accept(hello)

        def handler(connection: Connection) -> Any:
            self.connections.append(connection)
            return handler_of(connection)

        return inbound, handler


@asynccontextmanager
async def running(*machines: Machine) -> AsyncIterator[None]:
    for machine in machines:
        await machine.start()
    try:
        yield
    finally:
        for machine in machines:
            await machine.stop()


def content(layout: Layout, what: str, layer: int, logical: int) -> bytes:
    """Bytes that no other transfer, layer or block has."""
    seed = hashlib.sha256(f"{what}/{layer}/{logical}".encode()).digest()
    return (seed * (layout.block_bytes // len(seed) + 1))[: layout.block_bytes]


def offer(put: Put, blocks: list[int], *, layers: int = LAYOUT.layers, tokens: int = 64) -> None:
    """What an engine does for one chunk: begin, every layer, seal."""
    put.begin(tokens)
    for layer in range(layers):
        put.layer(layer, 0, blocks)
    put.seal(Token(7))


def soon(seconds: float = 8.0) -> float:
    """A deadline."""
    return time.monotonic() + seconds


class Hold:
    """A put fault that stops the sender right before the bytes of one layer move, until `release`."""

    def __init__(self, transfer: str, layer: int = 1) -> None:
        self.held = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._transfer, self._layer = transfer, layer
        self._released = threading.Event()

    def put(self, transfer: str, layer: int, runs: Sequence[Run]) -> Iterable[tuple[int, Sequence[Run]]]:
        if (transfer, layer) == (self._transfer, self._layer):
            self._loop.call_soon_threadsafe(self.held.set)
            assert self._released.wait(WITHIN)
        return [(layer, runs)]

    async def reached(self) -> None:
        async with asyncio.timeout(WITHIN):
            await self.held.wait()

    def release(self) -> None:
        self._released.set()


async def begin(prompt: Machine, token: Machine, name: str, source: list[int], target: list[int]) -> Any:
    """Arm and expect a transfer; the put that the prompt machine gets."""
    prompt.fill(source, name)
    prompt.kv.expect(name, deadline=soon())
    token.kv.arm(name, prompt_machine=prompt.address, blocks=target, deadline=soon())
    return (await prompt.news.of("ticket", name))[2]


async def whole(prompt: Machine, token: Machine, name: str, source: list[int], target: list[int]) -> None:
    """A transfer that has to work."""
    offer(await begin(prompt, token, name, source, target), source)
    await token.news.of("arrived", name)
    await prompt.news.of("drained", name)
    assert token.holds(target, name)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110 - counts have no event to wait for
            await asyncio.sleep(0.005)
