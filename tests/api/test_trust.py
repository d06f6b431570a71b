"""The link Secret on a real API server: keys are replaced with the chart's rights, and no pod restarts."""

import base64
import itertools
import pathlib
from collections.abc import AsyncIterator

import pytest

from cluster.client import Client, Object
from cluster.fixtures import Nodes
from cluster.follow import wait_for
from cluster.running import Cluster
from deployments import deployment
from operating import SWD, WAIT, Operator, ready, until_true

STEP = "splitwise.dev/link-step"


@pytest.fixture
async def hasty(cluster: Cluster, api: Client, tmp_path: pathlib.Path) -> AsyncIterator[Operator]:
    """An operator that finds keys old after two seconds."""
    running = Operator(cluster, api, tmp_path, linkRotation="2s", linkSettling="2s")
    await running.start()
    try:
        yield running
        running.check()
    finally:
        await running.remove()


def keys(secret: Object) -> tuple[str, ...]:
    return tuple(base64.b64decode(secret["data"]["secret"]).decode().split("\n"))


async def test_keys_are_replaced_and_no_pod_restarts(api: Client, nodes: Nodes, hasty: Operator) -> None:
    await nodes.add()
    item = deployment(
        engine={"name": "reference"}, model={"name": "tiny", "source": {"path": "/models/tiny"}}
    )
    item["metadata"]["namespace"] = api.namespace
    await api.apply(item)
    await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    pods = {pod["metadata"]["uid"] for pod in await api.list("pods")}
    seen: dict[str, set[tuple[str, ...]]] = {}
    looks = itertools.count()

    async def replaced() -> bool:
        await api.patch(SWD, "tiny", {"metadata": {"labels": {"looks": str(next(looks))}}})
        secret = await api.get("secrets", "tiny-link")
        seen.setdefault(secret["metadata"]["annotations"][STEP], set()).add(keys(secret))
        return len(seen) == 3 and len(seen["settled"]) > 1

    await until_true(replaced, "a key has been replaced", WAIT)
    assert seen.keys() == {"settled", "announced", "adopted"}
    assert {len(each) for each in seen["announced"] | seen["adopted"]} == {2}
    assert {len(each) for each in seen["settled"]} == {1}
    assert {pod["metadata"]["uid"] for pod in await api.list("pods")} == pods
