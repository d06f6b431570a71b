"""One container of a pretend pod: started, watched, restarted with backoff, stopped.

What "running" means is left to an engine: a script that only pretends, or a local process.
"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol

from cluster.client import Object
from cluster.podstatus import ContainerState, timestamp

BACKOFF_SECONDS, BACKOFF_LIMIT = 0.5, 8.0  # upstream: 10 and 300
START_RETRY_SECONDS = 0.5
_ids = itertools.count(1)


class StartRefused(Exception):
    """A container cannot start now; `reason` is shown in its waiting state."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.reason = reason


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended."""

    code: int
    message: str = ""


class Run(Protocol):
    """One run of a container, from start to exit."""

    async def wait(self) -> Exit:
        """Until it ends."""

    async def attend(self, report: Callable[[bool, bool], None]) -> None:
        """Probes it until cancelled, and reports (started, ready) whenever that changes."""

    async def stop(self, seconds: float) -> None:
        """Asks it to end, and forces it after `seconds`. Returns when it has ended."""

    def kill(self) -> None:
        """Ends it at once."""


class Container:
    """A container and its runs. `live` goes on until it has ended for good."""

    def __init__(
        self, spec: Object, state: ContainerState, *, policy: str, changed: Callable[[], None]
    ) -> None:
        self.spec = spec
        self.state = state
        self._policy = "Always" if state.sidecar else policy
        self._changed = changed
        self._run: Run | None = None
        self._stopping = asyncio.Event()

    async def live(self, start: Callable[[Object], Awaitable[Run]]) -> int:
        """Runs it as often as its restart policy says; its last exit code."""
        failures = 0
        while run := await self._started(start):
            begun = timestamp()
            self._show({"running": {"startedAt": begun}})
            end = await self._attended(run)
            terminated = self._terminated(end, begun)
            if self._stopping.is_set() or not self._restarts(end.code):
                self._show(terminated)
                return end.code
            failures += 1
            self.state.last_state = terminated
            pause = min(BACKOFF_SECONDS * 2 ** (failures - 1), BACKOFF_LIMIT)
            message = f"back-off {pause:g}s restarting failed container={self.state.name}"
            self._show({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
            await self._pause(pause)
            self.state.restarts += 1
        return 0

    async def stop(self, seconds: float) -> None:
        """Ends the present run, if any, within `seconds`; there will be no other."""
        self._stopping.set()
        if self._run is not None:
            await self._run.stop(seconds)

    def kill(self) -> None:
        """Ends the present run now; there will be no other."""
        self._stopping.set()
        if self._run is not None:
            self._run.kill()

    async def _started(self, start: Callable[[Object], Awaitable[Run]]) -> Run | None:
        """The next run, once the engine is willing; None if it is to stop before that."""
        while not self._stopping.is_set():
            try:
                self._run = await start(self.spec)
            except StartRefused as refused:
                waiting = {"reason": refused.reason, "message": str(refused)}
                if self.state.state != {"waiting": waiting}:
                    self._show({"waiting": waiting})
                await self._pause(START_RETRY_SECONDS)
            else:
                if self._stopping.is_set():
                    self._run.kill()
                return self._run
        return None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _attended(self, run: Run) -> Exit:
        """Until the run ends, reporting its readiness meanwhile."""
        attending = asyncio.create_task(run.attend(self._report))
        try:
            return await run.wait()
        finally:
            attending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await attending
            self._run = None
            self.state.started = self.state.ready = False

    def _report(self, started: bool, ready: bool) -> None:
        if (self.state.started, self.state.ready) != (started, ready):
            self.state.started, self.state.ready = started, ready
            self._changed()

    def _restarts(self, code: int) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and code != 0)

    def _terminated(self, end: Exit, begun: str) -> Object:
        return {
            "terminated": {
                "exitCode": end.code,
                "reason": "Completed" if end.code == 0 else "Error",
                "message": end.message,
                "startedAt": begun,
                "finishedAt": timestamp(),
                "containerID": f"pretend://{next(_ids)}",
            }
        }

    def _show(self, state: Object) -> None:
        self.state.state = state
        self._changed()
