"""`python -m runtime.router --config FILE`: serve the OpenAI API until SIGTERM or SIGINT.

The first signal ends gracefully: no new connections, running answers finish within `drain_seconds`. The
second ends at once. Exit status 2: settings, secret or tokenizer that cannot be used, or an address in use.
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from runtime import log, program
from runtime.config import RouterSettings
from runtime.router.app import App
from runtime.router.router import Router
from runtime.tokenizer import load

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
    came = program.signals()
    logging.getLogger("aiohttp.server").disabled = True  # it quotes what clients sent, keys and prompts too
    router = Router(settings, await asyncio.to_thread(load, settings.model.path))
    machines = asyncio.create_task(router.run(), name="machines")
    runner = web.ServerRunner(App(router).server(), shutdown_timeout=settings.drain_seconds)
    await runner.setup()
    try:
        await program.serve_http(runner, settings.listen)
        logger.info("listening", address=settings.listen, model=settings.model.name)
        await program.first_of(came.get(), asyncio.shield(machines))
        if machines.done():  # the search for machines only ends by a mistake
            machines.result()
        await program.first_of(runner.cleanup(), came.get())
    finally:
        machines.cancel()
        await asyncio.gather(machines, return_exceptions=True)
    logger.info("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
