"""Fixtures of the tests that need a cluster. Load them in a conftest with

    def pytest_configure(config):
        config.pluginmanager.import_plugin("cluster.fixtures")

Any test that uses one of them is marked `cluster`: `pytest -m "not cluster"` leaves it out. Without
the tools such tests are skipped; with SPLITWISE_REQUIRE_CLUSTER=1 they fail instead.
"""

import os
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from cluster import binaries, network
from cluster.client import Client, Object
from cluster.follow import wait_for
from cluster.nodes import Gpu, node
from cluster.running import Cluster

FIXTURES = {"cluster", "private_cluster"}
DESCRIPTION = "cluster: needs a Kubernetes API server (make tools, or USE_EXISTING_CLUSTER=true)"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", DESCRIPTION)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("cluster")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Enters the private network before any test has started threads or servers."""
    chosen = any(item.get_closest_marker("cluster") for item in session.items)
    if chosen and not session.config.option.collectonly and not binaries.existing_cluster():
        network.isolate()


def give_up(reason: str) -> None:
    """Skips the test, or fails it where a cluster is required."""
    if os.environ.get("SPLITWISE_REQUIRE_CLUSTER", "") not in ("", "0"):
        pytest.fail(f"a cluster is required here: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster for the whole run. Give it back as you found it."""
    if reason := binaries.why_no_cluster():
        give_up(reason)
    running = Cluster.join() if binaries.existing_cluster() else Cluster.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def private_cluster() -> Iterator[Cluster]:
    """A cluster for one test, which may kill, freeze and restart its programs."""
    if binaries.existing_cluster():
        pytest.skip("an existing cluster's control plane is not ours to kill")
    if reason := binaries.why_no_cluster():
        give_up(reason)
    running = Cluster.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def process_pods(cluster: Cluster) -> None:
    """For tests whose pods run as processes: each needs an address of its own."""
    if cluster.control_plane is None:
        pytest.skip("pods run as processes only on a control plane of our own")
    if reason := network.isolate():
        give_up(reason)


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[Client]:
    """A client in a new namespace, which goes after the test with all that is in it."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    async with cluster.client(namespace) as client:
        name = {"metadata": {"name": namespace}}
        await client.create({"apiVersion": "v1", "kind": "Namespace", **name})
        try:
            yield client
        finally:
            await client.delete("namespaces", namespace)
    cluster.check()


class Nodes:
    """Makes pretend nodes, and removes them after the test."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._prefix = f"node-{uuid.uuid4().hex[:6]}"
        self.names: list[str] = []

    async def add(
        self,
        *,
        gpu: Gpu | None = None,
        count: int = 8,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
    ) -> str:
        """A new node's name, once the node is ready. See `nodes.node` for the arguments."""
        name = f"{self._prefix}-{len(self.names)}"
        self.names.append(name)
        manifest = node(name, gpu=gpu, count=count, labels=labels, annotations=annotations, capacity=capacity)
        await self._client.create(manifest)
        await wait_for(self._client, "nodes", name, schedulable)
        return name

    async def remove(self, name: str) -> None:
        await self._client.delete("nodes", name)

    async def remove_all(self) -> None:
        for name in self.names:
            await self.remove(name)


def schedulable(item: Object) -> bool:
    """True for a node that is ready and has lost the taint of a newcomer."""
    conditions = {c["type"]: c["status"] for c in item["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not item["spec"].get("taints")


@pytest.fixture
async def nodes(cluster: Cluster) -> AsyncIterator[Nodes]:
    """Makes pretend nodes: `await nodes.add(gpu=H100)`."""
    async with cluster.client() as client:
        made = Nodes(client)
        try:
            yield made
        finally:
            await made.remove_all()
