"""Puts a router together: tokenizer, fleet, books, desk and metrics. HTTP is `app`'s."""

import asyncio
import secrets
import socket

from runtime.config import RouterSettings
from runtime.errors import NoCapacity
from runtime.kubernetes import find_access
from runtime.link import Hello, Keyring, Pulse, host_id
from runtime.router.answer import Answer
from runtime.router.ask import Ask, Reader
from runtime.router.books import Books
from runtime.router.desk import Desk
from runtime.router.discovery import Discovery, Listed
from runtime.router.discovery_slices import Slices
from runtime.router.fleet import Caller, Fleet
from runtime.router.metrics import LookedUp, RouterMetrics
from runtime.tokenizer import Tokenizer


def _discovery(settings: RouterSettings) -> Discovery:
    """Raises ValueError if machines are to be found in a cluster and none is in sight."""
    if settings.endpoint_slices:
        return Slices(settings.endpoint_slices, find_access())
    return Listed(settings.machines)


class Router:
    """`run` keeps the connections to the machines until cancelled; `answer` makes an answer of an ask."""

    def __init__(
        self, settings: RouterSettings, tokenizer: Tokenizer, discovery: Discovery | None = None
    ) -> None:
        """Raises ValueError if the link's secret cannot be read."""
        self.settings = settings
        self.tokenizer = tokenizer
        self.metrics = RouterMetrics()
        self.books = Books()
        self.reader = Reader(settings.model.name, tokenizer)
        link = settings.link
        caller = Caller(
            hello=Hello("router", socket.gethostname(), secrets.token_hex(8), host_id()),
            secret=Keyring(link.secret_file),
            pulse=Pulse(link.heartbeat_seconds, link.dead_after_seconds),
            model=settings.model.name,
            vocabulary=tokenizer.vocabulary,
        )
        self.fleet = Fleet(caller, discovery or _discovery(settings), self.books, self._changed)
        self.desk = Desk(self.fleet, self.books, settings, on_place=self.metrics.placed)
        self.metrics.registry.register(
            LookedUp(self.metrics, self.fleet.machines.values, lambda: self.desk.waiting)
        )
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Follow the machines until cancelled."""
        await self.fleet.run()

    async def context(self) -> int:
        """How many tokens prompt and output may have together. Waits for a first machine as long as a choice
        would; raises NoCapacity."""
        known = self.fleet.context_tokens()
        if not known:
            known = await self._first_context()
        return min(known, self.tokenizer.context_tokens or known)

    def answer(self, ask: Ask, *, request_id: str, context: int) -> Answer:
        """An answer that has not begun."""
        return Answer(
            ask,
            request_id=request_id,
            context=context,
            tokenizer=self.tokenizer,
            desk=self.desk,
            seconds=self.settings.request_timeout_seconds,
        )

    async def _first_context(self) -> int:
        try:
            async with asyncio.timeout(self.settings.wait_for_machines_seconds):
                while not (known := self.fleet.context_tokens()):
                    self._news.clear()
                    await self._news.wait()
                return known
        except TimeoutError:
            raise NoCapacity(
                "no machine is ready: the prompt pool and the token pool are empty; "
                f"none came within {self.settings.wait_for_machines_seconds:g} s"
            ) from None

    def _changed(self) -> None:
        self._news.set()
        self.desk.retry()
