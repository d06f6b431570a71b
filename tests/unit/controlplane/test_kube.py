"""The five verbs as HTTP calls, and the errors they turn into."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from controlplane.errors import ApiError, Conflict, NotFound
from controlplane.kube import ApiServer, refusal
from runtime.kubernetes import Access

SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"}}


class Server:
    """Writes down each call and gives one answer."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: dict[str, str] = {}
        self.status, self.body = 200, "{}"

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.calls.append(
            (request.method, request.path, dict(request.query), json.loads(text) if text else None)
        )
        self.headers = dict(request.headers)
        return web.Response(status=self.status, text=self.body)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[ApiServer]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with ApiServer(Access(site.name, token="t")) as client:
            yield client
    finally:
        await runner.cleanup()


async def test_apply_takes_the_fields(server: Server, kube: ApiServer) -> None:
    await kube.apply(SERVICE)
    query = {"fieldManager": "splitwise-operator", "force": "true"}
    assert server.calls == [("PATCH", "/api/v1/namespaces/n/services/s", query, SERVICE)]
    assert server.headers["Content-Type"] == "application/apply-patch+yaml"
    assert server.headers["Authorization"] == "Bearer t"


async def test_create_is_another_manager_so_that_apply_leaves_its_fields(
    server: Server, kube: ApiServer
) -> None:
    await kube.create(SERVICE)
    manager = {"fieldManager": "splitwise-operator-seed"}
    assert server.calls == [("POST", "/api/v1/namespaces/n/services", manager, SERVICE)]


async def test_status_is_a_subresource(server: Server, kube: ApiServer) -> None:
    item = {"kind": "SplitwiseDeployment", "metadata": {"name": "d", "namespace": "n"}, "status": {}}
    await kube.apply(item, subresource="status")
    path = "/apis/splitwise.dev/v1alpha1/namespaces/n/splitwisedeployments/d/status"
    assert server.calls[0][:2] == ("PATCH", path)


async def test_list_selects_and_says_the_kind(server: Server, kube: ApiServer) -> None:
    server.body = json.dumps({"items": [{"metadata": {"name": "s"}}]})
    assert await kube.list("Service", "n", {"a": "b"}) == [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    ]
    assert server.calls[0][2] == {"labelSelector": "a=b"}


async def test_an_unknown_kind_has_no_objects(server: Server, kube: ApiServer) -> None:
    server.status = 404
    assert await kube.list("ServiceMonitor", "n") == []
    assert not await kube.knows("monitoring.coreos.com/v1", "servicemonitors")


async def test_secrets_are_looked_at_by_their_metadata(server: Server, kube: ApiServer) -> None:
    await kube.get("Secret", "n", "s", metadata_only=True)
    assert "PartialObjectMetadata" in server.headers["Accept"]


async def test_delete_means_this_very_object(server: Server, kube: ApiServer) -> None:
    await kube.delete("Service", "n", "s", "uid")
    assert server.calls[0][3]["preconditions"] == {"uid": "uid"}
    server.status = 404
    await kube.delete("Service", "n", "s", "uid")
    server.status, server.body = 500, "broken"
    with pytest.raises(ApiError, match="broken"):
        await kube.delete("Service", "n", "s", "uid")


async def test_only_writes_are_counted(server: Server, kube: ApiServer) -> None:
    await kube.get("Service", "n", "s")
    await kube.apply(SERVICE)
    assert kube.writes == 1


async def test_no_answer_is_an_error_of_status_0() -> None:
    async with ApiServer(Access("http://127.0.0.1:9")) as kube:
        with pytest.raises(ApiError, match="no answer") as error:
            await kube.get("Service", "n", "s")
    assert error.value.status == 0


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (409, Conflict), (422, ApiError)])
def test_refusals_keep_the_servers_words(status: int, kind: type[ApiError]) -> None:
    error = refusal(status, json.dumps({"message": "said so"}))
    assert (type(error), str(error), error.status) == (kind, "said so", status)
    assert str(refusal(status, "plain")) == "plain"
