"""Keeps programs alive: starts them, starts again those that end, says why, ends them in order.

Until `settle` is called nothing is started again: a program that ends while its deployment comes up is a
mistake to be told, not a fault to be healed.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from local.child import Process, Program, ended, last_words, spawn, start_time

State = Literal["starting", "running", "waiting", "ended"]
_QUIET_SECONDS = 60.0


def backoff(failures: int) -> float:
    """Seconds to wait before the next start after so many recent failures: 0, 0.5, 1, 2, 4, 8, then 10."""
    return 0.0 if failures == 0 else min(10.0, 0.5 * 2 ** (failures - 1))


@dataclass(slots=True)
class Watched:
    """A program and what became of it. failures: ends that came soon after a start."""

    program: Program
    handle: asyncio.subprocess.Process
    process: Process
    state: State = "starting"
    restarts: int = 0
    failures: int = 0
    born: float = 0.0

    def kill(self) -> None:
        """End it now; nothing if it has ended."""
        if self.handle.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.handle.kill()

    def ask(self) -> None:
        """Ask it to end (SIGTERM); nothing if it has ended."""
        if self.handle.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.handle.terminate()


class Supervisor:
    """Programs under watch, on the running event loop; their parent is this process's main thread.

    told: gets a sentence whenever a program ended by itself. changed: is called after every change of state.
    failure: done, with a sentence, once a program ended that is not started again.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        told: Callable[[str], None] = lambda sentence: None,
        changed: Callable[[], None] = lambda: None,
        wait: Callable[[int], float] = backoff,
        restart: bool = True,
    ) -> None:
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.watched: dict[str, Watched] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._environment = environment
        self.told = told
        self._changed = changed
        self._wait = wait
        self._restart = restart
        self._settled = False
        self._stopping = asyncio.Event()

    async def start(self, programs: Sequence[Program]) -> None:
        """Start the programs, in order."""
        for program in programs:
            handle, process = await self._spawn(program)
            watched = Watched(program, handle, process, born=asyncio.get_running_loop().time())
            self.watched[program.name] = watched
            self._tasks[program.name] = asyncio.create_task(self._keep(watched))
            self._changed()

    def settle(self) -> None:
        """From now on a program that ends is started again."""
        self._settled = True
        for watched in self.watched.values():
            self._move(watched, "running")

    async def stop(self, *roles: str, grace: float) -> None:
        """Ask the programs of these roles (none: all) to end; after `grace` seconds kill them."""
        self._stopping.set()
        chosen = [w for w in self.watched.values() if not roles or w.program.role in roles]
        for watched in chosen:
            watched.ask()
        tasks = [self._tasks[watched.program.name] for watched in chosen]
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=grace)
        for watched in chosen:
            watched.kill()
        await asyncio.gather(*tasks)

    def kill(self) -> None:
        """End everything at once."""
        self._stopping.set()
        for watched in self.watched.values():
            watched.kill()

    async def _keep(self, watched: Watched) -> None:
        loop = asyncio.get_running_loop()
        while True:
            code = await watched.handle.wait()
            if self._stopping.is_set():
                break
            why = _obituary(watched.program, code)
            if not (self._settled and self._restart):
                if not self.failure.done():
                    self.failure.set_result(why)
                break
            watched.failures = 0 if loop.time() - watched.born > _QUIET_SECONDS else watched.failures
            delay = self._wait(watched.failures)
            self._move(watched, "waiting")
            self.told(f"{why}; starting it again" + (f" in {delay:g} s" if delay else ""))
            if await self._is_stopped_within(delay):
                break
            await self._again(watched)
        self._move(watched, "ended")

    async def _again(self, watched: Watched) -> None:
        watched.handle, watched.process = await self._spawn(watched.program)
        watched.born = asyncio.get_running_loop().time()
        watched.restarts += 1
        watched.failures += 1
        if self._stopping.is_set():
            watched.kill()
        self._move(watched, "running")

    async def _spawn(self, program: Program) -> tuple[asyncio.subprocess.Process, Process]:
        handle = await spawn(program, self._environment)
        return handle, Process(handle.pid, start_time(handle.pid))

    async def _is_stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    def _move(self, watched: Watched, state: State) -> None:
        watched.state = state
        self._changed()


def _obituary(program: Program, code: int) -> str:
    line = last_words(program.log) if code != -signal.SIGKILL else ""  # then it could not say why
    return f"{program.name} ended ({ended(code)})" + (f"; its last words: {line}" if line else "")
