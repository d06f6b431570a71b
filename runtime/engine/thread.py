"""The one thread that an engine lives on.

The loop's side hands over calls in order; the thread runs them between steps, steps while there is
something to do, and sends the news of each step back to the loop. An exception out of `step` means that
the engine cannot be trusted any more: `on_broken` hears it once and the process is expected to end.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from runtime.engine import Engine, Failed, News, Work
from runtime.errors import Failure
from runtime.wire import Load

OnNews = Callable[[list[News], Load, float | None], None]
"""Called on the loop with the news of a step, the load behind it and the step's seconds, or None where only
calls were obeyed."""

_STOP_SECONDS = 30.0


class EngineThread:
    """Owns the thread. `submit`, `cancel`, `arrived`, `fenced` and `drained` are those of the engine, run
    later and in order; a work that the engine refuses comes back as `Failed`."""

    def __init__(self, engine: Engine, on_news: OnNews, on_broken: Callable[[Exception], None]) -> None:
        self._engine = engine
        self._on_news = on_news
        self._on_broken = on_broken
        self._calls: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None]
        self._calls = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._calls.put((self._submit, (work,)))

    def cancel(self, id: str) -> None:
        self._calls.put((self._engine.cancel, (id,)))

    def arrived(self, id: str, first: Any) -> None:
        self._calls.put((self._engine.arrived, (id, first)))

    def fenced(self, id: str) -> None:
        self._calls.put((self._engine.fenced, (id,)))

    def drained(self, id: str) -> None:
        self._calls.put((self._engine.drained, (id,)))

    async def stop(self) -> None:
        """Wait (bounded) for the step in hand, close the engine and end the thread."""
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    # ---- on the thread

    def _submit(self, work: Work) -> None:
        try:
            self._engine.submit(work)
        except Failure as failure:
            self._post([Failed(work.id, failure.code, failure.message)])

    def _run(self) -> None:
        try:
            while self._obey():
                if not self._engine.busy():
                    self._post([])
                    continue
                started = time.monotonic()
                news = self._engine.step()
                self._post(news, time.monotonic() - started)
            self._engine.close()
        except Exception as error:
            self._tell(self._on_broken, error)

    def _obey(self) -> bool:
        """Run the calls that wait; sleep for one if the engine has nothing to do. False: stop."""
        moved = False
        while True:
            try:
                call = self._calls.get(block=not moved and not self._engine.busy())
            except queue.Empty:
                break
            if call is None:
                return False
            method, arguments = call
            method(*arguments)
            moved = True
        return True

    def _post(self, news: list[News], seconds: float | None = None) -> None:
        self._tell(self._on_news, news, self._engine.load(), seconds)

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop has closed: nobody is left to hear it
            return
