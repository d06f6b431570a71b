"""One pass at a time per key, however often it is asked for; failures are tried again, later and later."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controlplane.errors import ApiError
from runtime import log

K = TypeVar("K", bound=Hashable)
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 60.0
logger = log.logger("queue")


@dataclass(slots=True)
class _Entry:
    """`due`: when the next pass begins, by the loop's clock; None while nobody asks. `failures` in a row."""

    running: bool = False
    due: float | None = None
    failures: int = 0
    timer: asyncio.TimerHandle | None = None


class WorkQueue(Generic[K]):
    """`work` is called for each key that was woken; it returns seconds until the next look, or None.

    At most `workers` passes run at once, and never two of one key. Use it on one event loop."""

    def __init__(self, work: Callable[[K], Awaitable[float | None]], *, workers: int = 8) -> None:
        self._work = work
        self._room = asyncio.Semaphore(workers)
        self._entries: dict[K, _Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def idle(self) -> bool:
        """No pass runs."""
        return not self._tasks

    def wake(self, key: K, after: float = 0.0) -> None:
        """Ask for a pass within so many seconds: wakes that come in between are served by it, and an earlier
        one is not put off. While a pass runs, any number of calls make one more."""
        entry = self._entries.setdefault(key, _Entry())
        due = asyncio.get_running_loop().time() + after
        entry.due = due if entry.due is None else min(due, entry.due)
        if not entry.running:
            self._schedule(key, entry)

    async def drain(self) -> None:
        """Let running passes end, and start no more."""
        self._closing = True
        for entry in self._entries.values():
            self._cancel(entry)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def abandon(self) -> None:
        """End running passes where they are: somebody else may work on the same keys now."""
        for task in self._tasks:
            task.cancel()

    def _schedule(self, key: K, entry: _Entry) -> None:
        self._cancel(entry)
        if self._closing or entry.due is None:
            return
        loop = asyncio.get_running_loop()
        if entry.due > loop.time():
            entry.timer = loop.call_at(entry.due, self._start, key, entry)
        else:
            self._start(key, entry)

    def _start(self, key: K, entry: _Entry) -> None:
        entry.running = True
        task = asyncio.get_running_loop().create_task(self._pass(key, entry), name=f"pass {key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, key: K, entry: _Entry) -> None:
        delay: float | None
        try:
            async with self._room:
                entry.due = None  # whoever asked while we waited for room is served by this pass
                delay = await self._work(key)
            entry.failures = 0
        except Exception as error:
            delay = self._failed(key, entry, error)
        entry.running = False
        if entry.due is None and delay is None:
            del self._entries[key]
            return
        if entry.due is None and delay is not None:
            entry.due = asyncio.get_running_loop().time() + delay
        self._schedule(key, entry)

    def _failed(self, key: K, entry: _Entry, error: Exception) -> float:
        """How long to wait; the more failures in a row, the longer, and never in step with others."""
        entry.failures += 1
        if isinstance(error, ApiError):
            logger.warning("pass failed", key=str(key), error=str(error), failures=entry.failures)
        else:
            logger.exception("pass broke", key=str(key), failures=entry.failures)
        longest = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(entry.failures - 1, 16))
        return longest * random.uniform(0.5, 1.0)

    @staticmethod
    def _cancel(entry: _Entry) -> None:
        if entry.timer:
            entry.timer.cancel()
            entry.timer = None
