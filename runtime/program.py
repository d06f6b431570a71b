"""What our programs share: signals one by one, the first of several waits, HTTP at an address."""

import asyncio
import signal
from collections.abc import Awaitable

from aiohttp import web


def signals() -> "asyncio.Queue[signal.Signals]":
    """SIGTERM and SIGINT as they come, instead of their default effect."""
    came: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, came.put_nowait, number)
    return came


async def first_of(*waits: Awaitable[object]) -> None:
    """Until one of them is over; the others are given up, and have ended when this returns."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve_http(runner: web.BaseRunner, address: str) -> None:
    """Open a set-up runner at "host:port" or "unix:/path". Raises ValueError, or OSError if it is taken."""
    if address.startswith("unix:"):
        await web.UnixSite(runner, address.removeprefix("unix:")).start()
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"listen: {address!r} is neither host:port nor unix:/path")
    await web.TCPSite(runner, host.strip("[]") or None, int(port), reuse_port=False).start()
