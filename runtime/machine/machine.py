"""Joins one engine, its KV link and the phases that its role allows.

Everything here runs on the loop; the engine and the bytes of the link have threads of their own, whose
news arrive as the callbacks below.
"""

import asyncio
import os
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, structs

from runtime.config import MachineSettings
from runtime.engine import Engine, LayerPut, News, Reserved, Sampled
from runtime.engine.thread import EngineThread
from runtime.errors import Failure, InvalidRequest, NoCapacity
from runtime.kv_link.endpoint import KvLink
from runtime.kv_link.pool import Pool
from runtime.link import (
    Connection,
    Handler,
    Hello,
    Keyring,
    Listener,
    Pulse,
    Refused,
    host_id,
    listen,
)
from runtime.machine.metrics import MachineMetrics
from runtime.machine.routers import RouterConnection
from runtime.prompt_server.worker import PromptWorker
from runtime.stream import Stream
from runtime.token_server.worker import TokenWorker
from runtime.wire import Load, MachineInfo, Token, Transfer

_OTHER_PHASE = {"prompt": "token", "token": "prompt"}


class Machine:
    """A running machine; `start` it on the loop, `drain` and `close` it before the loop ends.

    `broken` is set if the engine failed beyond repair; the process should then exit."""

    def __init__(self, settings: MachineSettings, engine: Engine, pool: Pool) -> None:
        self.settings = settings
        self.metrics = MachineMetrics(settings, engine.info)
        self.broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.draining = False
        self._engine_info = engine.info
        self._pool = pool
        self._thread = EngineThread(engine, self._on_news, self._on_broken)
        self._kv = KvLink(
            name=settings.name, pool=pool, settings=settings.transfer, link=settings.link, events=self
        )
        self._prompts = PromptWorker(self._thread, self._kv)
        self._tokens = TokenWorker(self._thread, self._kv, recompute=settings.degraded_mode == "recompute")
        self._routers: set[RouterConnection] = set()
        self._instance = secrets.token_hex(8)
        self._listener: Listener | None = None
        self._load = Load()
        self._idle = asyncio.Event()

    # ---- life

    async def start(self) -> str:
        """Open for routers and peers; returns the address. Raises OSError if it is taken."""
        await self._kv.start()
        link = self.settings.link
        self._listener = await listen(
            self.settings.listen,
            hello=self._hello,
            secret=Keyring(link.secret_file),
            accept=self._accept,
            pulse=Pulse(link.heartbeat_seconds, link.dead_after_seconds),
        )
        return self._listener.address

    async def drain(self, seconds: float) -> bool:
        """Take nothing new and wait for what runs, KV hand-offs included. False if time ran out."""
        self.draining = True
        self._report()
        try:
            async with asyncio.timeout(seconds):
                while self.legs:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._listener:
            await self._listener.close()
        await self._kv.close()
        await self._thread.stop()
        self._pool.close()

    @property
    def takes_work(self) -> bool:
        """Not while draining, nor while so many KV blocks wait for hung writers that none can be armed."""
        return not (self.draining or self._kv.is_quarantine_full)

    @property
    def legs(self) -> int:
        return len(self._prompts) + len(self._tokens)

    # ---- connections

    def _hello(self, caller: Hello) -> Hello:
        body = self._kv.hello_body() if caller.kind == "machine" else self._info()
        return Hello("machine", self.settings.name, self._instance, host_id(), Raw(body))

    def _info(self) -> bytes:
        info, layout = self._engine_info, self._engine_info.layout
        return msgspec.msgpack.encode(
            MachineInfo(
                role=self.settings.role,
                revision=self.settings.revision,
                model=info.model,
                context_tokens=info.context_tokens,
                vocabulary=info.vocabulary,
                kv_block_tokens=layout.block_tokens,
                kv_blocks=layout.blocks,
                pid=os.getpid(),
            )
        )

    def _accept(self, caller: Hello) -> tuple[Any, Callable[[Connection], Handler]]:
        if caller.kind == "machine":
            return self._kv.accept(caller)
        if caller.kind == "router":
            return RouterConnection.inbound, self._router
        raise Refused(f"a {caller.kind} has no business with a machine")

    def _router(self, connection: Connection) -> Handler:
        router = RouterConnection(connection, self, on_closed=self._routers.discard)
        self._routers.add(router)
        return router

    # ---- legs (runtime.machine.routers.Phases)

    def begin(self, stream: Stream, deadline: float) -> None:
        """Hand a leg to its phase. Raises InvalidRequest or NoCapacity."""
        start, role = stream.start, self.settings.role
        if start.phase == _OTHER_PHASE.get(role):
            raise InvalidRequest(f"{self.settings.name} is a {role} machine and takes no {start.phase} leg")
        if self.draining:
            raise NoCapacity(f"{self.settings.name} is draining")
        self.metrics.legs.labels(start.phase).inc()
        worker = self._prompts if start.phase == "prompt" else self._tokens
        worker.start(stream, deadline)

    def stop(self, stream: Stream, why: Failure) -> None:
        worker = self._prompts if stream.leg in self._prompts else self._tokens
        worker.stop(stream.leg, why)
        self._maybe_idle()

    def _maybe_idle(self) -> None:
        if not self.legs:
            self._idle.set()

    # ---- news from the engine

    def _on_news(self, news: list[News], load: Load, seconds: float | None) -> None:
        for item in news:
            if isinstance(item, Reserved):
                self._tokens.news(item)
            elif item.id in self._prompts:
                self._prompts.news(item)
            elif item.id in self._tokens:
                self._tokens.news(item)
        if seconds is not None:
            self.metrics.step(seconds, sum(len(item.tokens) for item in news if isinstance(item, Sampled)))
        self.metrics.load(load)
        self._load = load
        self._report()
        self._maybe_idle()

    def _report(self) -> None:
        load = structs.replace(self._load, draining=not self.takes_work)
        for router in self._routers:
            router.report(load)

    def _on_broken(self, error: Exception) -> None:
        if not self.broken.done():
            self.broken.set_result(error)

    # ---- news from the link (runtime.kv_link.endpoint.KvEvents)

    def ticket(self, transfer: str, put: LayerPut) -> None:
        self._prompts.ticket(transfer, put)

    def drained(self, transfer: str) -> None:
        self._prompts.drained(transfer)
        self._maybe_idle()

    def arrived(self, transfer: str, first: Token, stats: Transfer) -> None:
        self.metrics.transfer(stats)
        self._tokens.arrived(transfer, first, stats)

    def transfer_failed(self, transfer: str, reason: str) -> None:
        self.metrics.transfer_failed(reason)
        self._prompts.failed(transfer, reason)
        self._tokens.failed(transfer, reason)
        self._maybe_idle()

    def fenced(self, transfer: str) -> None:
        self._tokens.fenced(transfer)
        self._maybe_idle()
