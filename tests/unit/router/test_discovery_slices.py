"""EndpointSlices into machines, and a watch that survives its server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from runtime.config import SliceSettings
from runtime.kubernetes import Access
from runtime.router import discovery_slices
from runtime.router.discovery_slices import Slices, addresses


def endpoint(name: str, host: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [host], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def endpoint_slice(name: str, *endpoints: dict[str, Any], port: str = "link") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "ports": [{"name": "metrics", "port": 7401}, {"name": port, "port": 7400}],
        "endpoints": list(endpoints),
    }


def test_ready_endpoints_are_machines_by_name() -> None:
    slices = [
        endpoint_slice("t", endpoint("t-1", "10.0.0.2", ready=True), endpoint("t-0", "fd00::1", ready=True)),
        endpoint_slice("p", endpoint("p-0", "10.0.0.3")),
    ]
    assert [(each.name, each.address) for each in addresses(slices, "link")] == [
        ("p-0", "10.0.0.3:7400"),
        ("t-0", "[fd00::1]:7400"),
        ("t-1", "10.0.0.2:7400"),
    ]


@pytest.mark.fault("DRAIN-3")
def test_what_is_leaving_or_not_ready_is_none() -> None:
    one = endpoint_slice(
        "t",
        endpoint("t-0", "10.0.0.1", ready=False),
        endpoint("t-1", "10.0.0.2", ready=True, terminating=True),
    )
    assert addresses([one], "link") == []


def test_services_without_the_port_and_empty_slices_are_passed_over() -> None:
    router = endpoint_slice("r", endpoint("r-0", "10.0.0.9", ready=True), port="http")
    assert addresses([router, {"metadata": {"name": "e"}, "ports": None, "endpoints": None}], "link") == []


class Server:
    """An API server with one collection; each watch plays its list of events and ends."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.watches: list[list[dict[str, Any]]] = []
        self.lists = 0
        self.broken = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer secret"
        assert request.query["labelSelector"] == "a=b"
        if "watch" not in request.query:
            self.lists += 1
            if self.broken:
                self.broken -= 1
                raise web.HTTPInternalServerError
            return web.json_response({"metadata": {"resourceVersion": "5"}, "items": self.items})
        response = web.StreamResponse()
        await response.prepare(request)
        if self.watches:
            for event in self.watches.pop(0):
                await response.write(json.dumps(event).encode() + b"\n")
            return response
        await asyncio.Event().wait()
        return response


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(discovery_slices, "FIRST_RETRY_SECONDS", 0.01)
    made = Server()
    application = web.Application()
    application.router.add_get("/apis/discovery.k8s.io/v1/namespaces/n/endpointslices", made.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = site.name
    try:
        yield made
    finally:
        await runner.cleanup()


async def first(server: Server, count: int) -> list[list[str]]:
    """The names in the first sets."""
    slices = Slices(SliceSettings(namespace="n", selector="a=b"), Access(server.url, token="secret"))
    found: list[list[str]] = []
    async with asyncio.timeout(20), contextlib.aclosing(slices.sets()) as sets:  # type: ignore[type-var]
        async for machines in sets:
            found.append([each.name for each in machines])
            if len(found) == count:
                return found
    raise AssertionError("sets() never ends")


async def test_changes_are_followed(server: Server) -> None:
    server.items = [endpoint_slice("p", endpoint("p-0", "10.0.0.1"))]
    server.watches = [
        [
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "6"}}},
            {"type": "ADDED", "object": endpoint_slice("t", endpoint("t-0", "10.0.0.2"))},
            {"type": "MODIFIED", "object": endpoint_slice("t", endpoint("t-0", "10.0.0.2"))},
            {"type": "DELETED", "object": endpoint_slice("p")},
        ]
    ]
    assert await first(server, 3) == [["p-0"], ["p-0", "t-0"], ["t-0"]]


async def test_an_outdated_watch_lists_again(server: Server) -> None:
    server.items = [endpoint_slice("p", endpoint("p-0", "10.0.0.1"))]
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    server.watches = [[gone], [{"type": "ADDED", "object": endpoint_slice("t", endpoint("t-0", "10.0.0.2"))}]]
    assert await first(server, 2) == [["p-0"], ["p-0", "t-0"]]
    assert server.lists == 2


async def test_machines_stay_while_the_server_is_away(server: Server) -> None:
    server.items = [endpoint_slice("p", endpoint("p-0", "10.0.0.1"))]
    server.broken = 3
    server.watches = [[{"type": "DELETED", "object": endpoint_slice("p")}]]
    assert await first(server, 2) == [["p-0"], []]
    assert server.lists == 4
