"""The running operator: one leader, a queue of passes, kopf's watchers, health and metrics."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import kopf
from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)

from controlplane import nodes, watch
from controlplane.api import KIND
from controlplane.errors import ApiError
from controlplane.kube import ApiServer
from controlplane.lease import Lease
from controlplane.reconcile import Key, World, reconcile
from controlplane.routers import Routers, Scraped, Unasked
from controlplane.settings import OperatorSettings
from controlplane.workqueue import WorkQueue
from runtime import log, program
from runtime.kubernetes import Access

TOGETHER_SECONDS = 0.5
logger = log.logger("operator")


class Counts:
    """The operator's own metrics."""

    def __init__(self, kube: ApiServer) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.passes = Counter("splitwise_operator_passes", "Passes", ["outcome"], registry=self.registry)
        for name, what, count in (
            ("calls", "Calls to the API server, without watches", lambda: kube.calls),
            ("writes", "Writing calls to the API server", lambda: kube.writes),
        ):
            Gauge(f"splitwise_operator_{name}", what, registry=self.registry).set_function(count)


async def run(access: Access, settings: OperatorSettings, *, observe: str) -> int:
    """Serve until SIGTERM or SIGINT. `observe` is the address of /healthz and /metrics, empty for none.

    Returns 0, or 1 if the lease was lost and somebody else may lead now."""
    async with ApiServer(access) as kube, aiohttp.ClientSession() as session:
        counts = Counts(kube)
        async with _observed(counts, observe):
            identity = f"{socket.gethostname()}-{os.getpid()}"
            lease = Lease(kube, access.namespace, identity, seconds=settings.lease_seconds)
            await lease.until_leading()
            routers = Scraped(session) if settings.ask_routers else Unasked()
            lost = await _lead(kube, access, settings, lease=lease, routers=routers, counts=counts)
            if not lost:
                await lease.release()
    return int(lost)


async def _lead(
    kube: ApiServer,
    access: Access,
    settings: OperatorSettings,
    *,
    lease: Lease,
    routers: Routers,
    counts: Counts,
) -> bool:
    """Work until told to stop; whether the lease was lost."""
    store = watch.NodeStore()
    store.fill(await _patiently(lambda: kube.list("Node", None)))
    monitors = await _patiently(lambda: kube.knows("monitoring.coreos.com/v1", "servicemonitors"))
    world = World(kube, settings, routers=routers, nodes=store, monitors=monitors)
    queue = WorkQueue[Key](_counted(world, counts))
    for key in nodes.owners(store()):
        queue.wake(key)  # a deployment may have gone while nobody watched; its labels go with this pass
    known: set[Key] = set()

    def wake(key: Key, after: float) -> None:
        known.add(key)
        queue.wake(key, after)

    def wake_all() -> None:
        for key in known:
            queue.wake(key)

    wake_all_soon = _together(wake_all)
    renewing = asyncio.create_task(lease.until_lost())
    looking = asyncio.create_task(_look_again(kube, settings, known, queue.wake))
    # last, since at its end kopf waits for tasks that are younger than itself
    handlers = watch.registry(wake, wake_all_soon, store, world.told, access)
    watching = asyncio.create_task(_watch(settings, handlers))
    try:
        await asyncio.wait({watching, renewing}, return_when=asyncio.FIRST_COMPLETED)
        lost = renewing.done()
        if lost:
            queue.abandon()
    finally:
        for task in (renewing, looking, watching):
            task.cancel()
        await queue.drain()
        await asyncio.gather(watching, renewing, looking, return_exceptions=True)
    return lost


async def _watch(settings: OperatorSettings, handlers: Any) -> None:
    await kopf.operator(
        registry=handlers,
        settings=watch.settings(),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
    )


def _together(call: Callable[[], None]) -> Callable[[], None]:
    """Many calls in a short time as one: nodes change in droves."""
    waiting = False

    def late() -> None:
        nonlocal waiting
        waiting = False
        call()

    def soon() -> None:
        nonlocal waiting
        if not waiting:
            waiting = True
            asyncio.get_running_loop().call_later(TOGETHER_SECONDS, late)

    return soon


def _counted(world: World, counts: Counts) -> Callable[[Key], Awaitable[float | None]]:
    async def work(key: Key) -> float | None:
        try:
            delay = await reconcile(key, world)
        except Exception:
            counts.passes.labels("failed").inc()
            raise
        counts.passes.labels("done").inc()
        return delay

    return work


async def _look_again(
    kube: ApiServer, settings: OperatorSettings, known: set[Key], wake: Callable[[Key], None]
) -> None:
    """Every deployment now and then, in case an event was missed or a Secret was deleted."""
    while True:
        await asyncio.sleep(min(settings.resync_seconds, 60))
        with contextlib.suppress(ApiError):
            found = [
                item for space in settings.namespaces or (None,) for item in await kube.list(KIND, space)
            ]
            known.clear()
            known.update((item["metadata"]["namespace"], item["metadata"]["name"]) for item in found)
            for key in sorted(known):
                wake(key)
                await asyncio.sleep(settings.resync_seconds / len(known))  # never all at once


async def _patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of a call that has to succeed before anything else can begin."""
    while True:
        try:
            return await call()
        except ApiError as error:
            logger.warning("the API server does not answer yet", error=str(error))
            await asyncio.sleep(1.0)


@contextlib.asynccontextmanager
async def _observed(counts: Counts, address: str) -> AsyncIterator[None]:
    """/healthz and /metrics for as long as the block runs. Raises ValueError, or OSError if it is taken."""

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(counts.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    application = web.Application()
    application.add_routes([web.get("/healthz", health), web.get("/metrics", metrics)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        if address:
            await program.serve_http(runner, address)
        yield
    finally:
        await runner.cleanup()
