"""Things die: the API server, the operator, a token machine; the deployment comes back by itself."""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

import tiny_llama
from cluster import steering
from cluster.client import TRANSIENT, Client, Object
from cluster.expect import condition
from cluster.fixtures import Nodes
from cluster.follow import wait_for
from cluster.nodes import A100, H100
from cluster.running import Cluster
from operating import SWD, Operator, install_crds, is_so, ready, until_true

pytestmark = [pytest.mark.slow]

LONG = 120.0
PROMPT = {"model": "tiny", "prompt": "the same words", "max_tokens": 12, "temperature": 0}


@pytest.fixture
async def alone(private_cluster: Cluster, tmp_path: pathlib.Path) -> AsyncIterator[tuple[Client, Operator]]:
    """A cluster of our own with nodes for an HA deployment that runs as processes, and an operator."""
    async with private_cluster.client("mortal") as kube:
        await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mortal"}})
        nodes = Nodes(kube)
        for gpu in (None, H100, H100, A100, A100, A100):
            await nodes.add(gpu=gpu, annotations={steering.RUN: "process"})
        await install_crds(kube)
        operator = Operator(private_cluster, kube, tmp_path, askRouters=True)
        await operator.start()
        try:
            yield kube, operator
        finally:
            operator.process.stop()


async def ask(kube: Client) -> str:
    """One completion from the router."""
    return await post(await router_url(kube))


async def test_each_dies_in_turn(
    private_cluster: Cluster, alone: tuple[Client, Operator], tmp_path: pathlib.Path
) -> None:
    kube, operator = alone
    weights = tiny_llama.make(tmp_path / "model")
    spec = {
        "model": {"name": "tiny", "source": {"path": str(weights)}},
        "engine": {"name": "reference"},
        "design": "HA",
        "pools": {"prompt": {"replicas": 1}, "token": {"replicas": 2}},
    }
    head = {"apiVersion": "splitwise.dev/v1alpha1", "kind": "SplitwiseDeployment"}
    await kube.apply(head | {"metadata": {"name": "split"}, "spec": spec})
    await wait_for(kube, SWD, "split", ready, seconds=LONG)
    expected = await ask(kube)

    operator.process.kill()
    assert await ask(kube) == expected
    operator.process.start()

    [victim, *_] = await kube.list("pods", selector="splitwise.dev/pool=token")
    await kube.delete("pods", victim["metadata"]["name"], options={"gracePeriodSeconds": 0})
    assert await ask(kube) == expected  # by the other token machine

    def successor(pod: Object) -> bool:
        return pod["metadata"]["uid"] != victim["metadata"]["uid"] and condition("Ready")(pod)

    await wait_for(kube, "pods", victim["metadata"]["name"], successor, seconds=LONG)
    await wait_for(kube, SWD, "split", ready, seconds=LONG)
    assert await ask(kube) == expected

    plane = private_cluster.control_plane
    assert plane is not None
    url = await router_url(kube)
    plane.kill("kube-apiserver")
    assert await post(url) == expected  # the data plane does not need it
    await asyncio.to_thread(plane.start, "kube-apiserver")
    with contextlib.suppress(*TRANSIENT):
        await kube.get(SWD, "split")
    await kube.patch(SWD, "split", {"spec": {"pools": {"token": {"replicas": 1}}}})

    def smaller(item: Object) -> bool:
        return ready(item) and bool(item["status"]["summary"]["token"] == "1/1")

    await wait_for(kube, SWD, "split", smaller, seconds=LONG)
    assert await ask(kube) == expected

    await kube.patch(SWD, "split", {"spec": {"engine": {"image": "machine:new"}}})
    await wait_for(kube, SWD, "split", is_so("Ready", "False"), seconds=LONG)
    await wait_for(kube, SWD, "split", ready, seconds=LONG)
    assert await ask(kube) == expected

    await kube.request("DELETE", await kube.path(SWD, "split"), {"propagationPolicy": "Foreground"})

    async def gone() -> bool:
        return not await kube.list("pods") and not await kube.list(SWD)

    await until_true(gone, "nothing is left", seconds=LONG)
    operator.process.check()


async def router_url(kube: Client) -> str:
    [pod] = await kube.list("pods", selector="splitwise.dev/deployment=split,splitwise.dev/pool=router")
    return f"http://{pod['status']['podIP']}:8000/v1/completions"


async def post(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.post(url, json=PROMPT) as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["choices"][0]["text"])
