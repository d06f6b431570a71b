"""The user's wish to end, and waiting for whichever comes first."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


class Ended(Exception):
    """The user asked for the end before the work was done."""


class Wish:
    """The first signal asks for the end, the second insists."""

    def __init__(self) -> None:
        self.to_end = asyncio.Event()
        self.at_once = asyncio.Event()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP as the wish for as long as the block runs."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.hear)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def hear(self) -> None:
        """One more signal."""
        if self.to_end.is_set():
            self.at_once.set()
        self.to_end.set()


async def first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of them is done; the others are cancelled. Raises what the one raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
