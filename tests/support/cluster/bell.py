"""Tells many waiters that something changed."""

import asyncio
import contextlib


class Bell:
    """`ring` wakes everyone who waits at that moment. Look at the state, then wait, then look."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        rung, self._event = self._event, asyncio.Event()
        rung.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Until the next ring, or for `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
