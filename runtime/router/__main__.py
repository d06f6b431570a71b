"""`python -m runtime.router --config FILE`: serve the OpenAI API until SIGTERM or SIGINT.

The first signal ends gracefully: no new connections, running answers finish within a limit. The second
ends at once. Exit status 2: settings, secret or tokenizer that cannot be used, or an address in use.
"""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from runtime import log
from runtime.config import RouterSettings
from runtime.router.app import App
from runtime.router.router import Router
from runtime.tokenizer import load

GRACE_SECONDS = 30.0
IDLE_SECONDS = 75.0
logger = log.logger("router")


def main() -> int:
    parser = argparse.ArgumentParser(prog="runtime.router", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="a RouterSettings file (JSON)")
    options = parser.parse_args()
    try:
        settings = RouterSettings.read(options.config)
        log.set_up(program="router")
        return uvloop.run(_serve(settings))
    except (ValueError, OSError) as error:
        print(f"router: {error}", file=sys.stderr)
        return 2


async def _serve(settings: RouterSettings) -> int:
    signals = _signals()
    logging.getLogger("aiohttp.server").disabled = True  # it quotes what clients sent, keys and prompts too
    router = Router(settings, await asyncio.to_thread(load, settings.model.path))
    machines = asyncio.create_task(router.run(), name="machines")
    runner = web.AppRunner(
        App(router).application,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=IDLE_SECONDS,  # also the time a client has to send its headers
        shutdown_timeout=GRACE_SECONDS,
    )
    await runner.setup()
    try:
        await _listen(runner, settings.listen)
        logger.info("listening", address=settings.listen, model=settings.model.name)
        if not await _signalled(signals, machines):
            machines.result()
        await _first(asyncio.ensure_future(runner.cleanup()), asyncio.ensure_future(signals.get()))
    finally:
        machines.cancel()
        await asyncio.gather(machines, return_exceptions=True)
    logger.info("ended")
    return 0


async def _listen(runner: web.AppRunner, address: str) -> None:
    if address.startswith("unix:"):
        await web.UnixSite(runner, address.removeprefix("unix:")).start()
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"listen: {address!r} is neither host:port nor unix:/path")
    await web.TCPSite(runner, host.strip("[]") or None, int(port), reuse_port=False).start()


async def _signalled(signals: "asyncio.Queue[signal.Signals]", machines: "asyncio.Task[None]") -> bool:
    """Wait for a signal; False if the search for machines ended first, which only a mistake can do."""
    stop = asyncio.ensure_future(signals.get())
    await asyncio.wait({stop, machines}, return_when=asyncio.FIRST_COMPLETED)
    return stop.done()


async def _first(*waits: "asyncio.Future[object]") -> None:
    """Until one of them is done; the others are given up."""
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def _signals() -> "asyncio.Queue[signal.Signals]":
    came: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, came.put_nowait, number)
    return came


if __name__ == "__main__":
    sys.exit(main())
