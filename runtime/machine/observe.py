"""/metrics, /healthz and /readyz of a machine, on a port of their own."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from runtime.machine.machine import Machine
from runtime.program import serve_http


async def observe(machine: Machine, address: str) -> web.AppRunner:
    """Serve until the runner is cleaned up. Raises OSError if the address is taken."""

    async def metrics(request: web.Request) -> web.Response:
        body = generate_latest(machine.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(request: web.Request) -> web.Response:
        return _answer(not machine.broken.done(), "the engine has failed")

    async def ready(request: web.Request) -> web.Response:
        return _answer(machine.takes_work and not machine.broken.done(), "takes no new work")

    application = web.Application()
    application.add_routes(
        [web.get("/metrics", metrics), web.get("/healthz", health), web.get("/readyz", ready)]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await serve_http(runner, address)
    return runner


def _answer(fine: bool, otherwise: str) -> web.Response:
    return web.Response(text="ok\n") if fine else web.Response(status=503, text=f"{otherwise}\n")
