"""The API server forgets, answers late or not at all; the operator gets there, and makes nothing twice."""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from cluster.client import TRANSIENT, ApiError, Client, Object
from cluster.controlplane import ControlPlane
from cluster.fixtures import Nodes
from cluster.follow import until, wait_for
from cluster.proxy import Proxy
from cluster.running import Cluster
from operating import SETS, SWD, Operator, install_crds, ready, tiny, until_quiet

pytestmark = [pytest.mark.slow]

LONG = 120.0
LATE_SECONDS = 2.0
LEASE_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Far:
    """A cluster, and an operator that reaches its API server by a proxy."""

    plane: ControlPlane
    kube: Client
    operator: Operator
    proxy: Proxy

    async def until_sized(self, token: int) -> None:
        """Ready, with so many token machines."""

        def holds(item: Object) -> bool:
            return ready(item) and bool(item["status"]["summary"]["token"] == f"{token}/{token}")

        await wait_for(self.kube, SWD, "tiny", holds, seconds=LONG)

    async def edit(self, token: int) -> None:
        await self.kube.patch(SWD, "tiny", {"spec": {"pools": {"token": {"replicas": token}}}})

    async def children(self) -> dict[str, str]:
        """Uids by kind and name of all that the operator makes but the pods' own."""
        kinds = ("services", "configmaps", "secrets", "serviceaccounts", SETS, "deployments.apps")
        chosen = "app.kubernetes.io/managed-by=splitwise-operator"
        return {
            f"{kind}/{item['metadata']['name']}": item["metadata"]["uid"]
            for kind in kinds
            for item in await self.kube.list(kind, selector=chosen)
        }

    async def answer_to_an_old_watch(self, version: str) -> int:
        """The status code with which a watch from this version begins: 410, if it is forgotten."""
        path = await self.kube.path(SWD)
        try:
            async for event in self.kube.watch(path, {"resourceVersion": version}):
                return int(event["object"].get("code", 200))
        except ApiError as error:
            return error.status
        return 200


@contextlib.asynccontextmanager
async def far_from(cluster: Cluster, kube: Client, folder: pathlib.Path) -> AsyncIterator[Far]:
    """A deployment that is Ready, and its operator behind a proxy."""
    plane = cluster.control_plane
    assert plane is not None
    async with Proxy(kube.url) as proxy:
        operator = Operator(cluster, kube, folder, leaseSeconds=LEASE_SECONDS)
        operator.server = proxy.url
        await operator.start()
        try:
            await kube.apply(tiny(kube))
            found = Far(plane, kube, operator, proxy)
            await found.until_sized(1)
            await until_quiet(kube, SWD, "tiny")
            yield found
        finally:
            await operator.remove()


@pytest.fixture
async def far(cluster: Cluster, api: Client, nodes: Nodes, tmp_path: pathlib.Path) -> AsyncIterator[Far]:
    if cluster.control_plane is None:
        pytest.skip("an existing cluster's API server is not behind our proxy")
    await nodes.add()
    async with far_from(cluster, api, tmp_path) as found:
        yield found


@pytest.fixture
async def far_alone(private_cluster: Cluster, tmp_path: pathlib.Path) -> AsyncIterator[Far]:
    """With an API server of its own, which may be killed."""
    async with private_cluster.client("far") as kube:
        await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "far"}})
        await Nodes(kube).add()
        await install_crds(kube)
        async with far_from(private_cluster, kube, tmp_path) as found:
            yield found


async def test_what_the_api_server_has_forgotten_is_listed_anew(far_alone: Far) -> None:
    far = far_alone
    before = await far.children()
    listed = await far.kube.request("GET", await far.kube.path(SWD))
    await far.proxy.cut()
    await far.edit(token=2)
    await far.kube.delete("services", "tiny-router")
    await asyncio.to_thread(far.plane.forget)
    with contextlib.suppress(*TRANSIENT):  # our own connections were to the one that was killed
        await far.kube.get(SWD, "tiny")
    assert await far.answer_to_an_old_watch(listed["metadata"]["resourceVersion"]) == 410
    far.proxy.mend()
    await far.until_sized(2)
    after = await far.children()
    router = "services/tiny-router"
    assert after.pop(router) != before.pop(router)
    assert after == before
    far.operator.process.check()


async def test_an_api_server_that_answers_late_is_waited_for(far: Far) -> None:
    before = await far.children()
    far.proxy.delay = LATE_SECONDS
    await far.edit(token=2)
    await far.kube.delete("services", "tiny-router")
    await far.until_sized(2)
    far.proxy.delay = 0.0
    await until_quiet(far.kube, SWD, "tiny")
    after = await far.children()
    assert after.pop("services/tiny-router") != before.pop("services/tiny-router")
    assert after == before
    far.operator.check()


async def test_an_operator_that_hears_nothing_stops_before_another_may_lead(far: Far) -> None:
    before = await far.children()
    far.proxy.hang()
    await far.edit(token=2)
    await until(lambda: not far.operator.process.running, seconds=LEASE_SECONDS)
    assert far.operator.lines()[-1]["event"] == "no longer leading"
    far.proxy.resume()
    far.operator.process.start()
    await far.until_sized(2)
    assert await far.children() == before
    far.operator.check()
