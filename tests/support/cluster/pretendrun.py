"""A container that only pretends to run, as its pod's script says at the moment."""

import asyncio
from collections.abc import Callable

from cluster.bell import Bell
from cluster.container import Exit
from cluster.steering import Script

KILLED = 137


class PretendRun:
    """Looks at the script again whenever `bell` rings, so a test can change its mind."""

    def __init__(self, script: Callable[[], Script], bell: Bell) -> None:
        self._script = script
        self._bell = bell
        self._begun = self._now()
        self._forced: Exit | None = None

    async def wait(self) -> Exit:
        while self._forced is None:
            script = self._script()
            if script.exit_code is None:
                await self._bell.wait()
                continue
            remaining = self._begun + script.exit_after - self._now()
            if remaining <= 0:
                return Exit(script.exit_code)
            await self._bell.wait(remaining)
        return self._forced

    async def attend(self, report: Callable[[bool, bool], None]) -> None:
        while True:
            script = self._script()
            remaining = self._begun + script.ready_after - self._now()
            report(True, script.ready and remaining <= 0)
            await self._bell.wait(remaining if remaining > 0 else None)

    async def stop(self, seconds: float) -> None:
        needed = self._script().stop_after
        await asyncio.sleep(min(needed, seconds))
        self._end(Exit(0) if needed <= seconds else Exit(KILLED))

    def kill(self) -> None:
        self._end(Exit(KILLED))

    def _end(self, how: Exit) -> None:
        self._forced = how
        self._bell.ring()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
