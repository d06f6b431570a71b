"""The whole path on pretend nodes whose pods run the real programs: CR, machines, router, tokens."""

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

import tiny_llama
from cluster import steering
from cluster.client import Client, Object
from cluster.fixtures import Nodes
from cluster.follow import wait_for
from cluster.nodes import A100, H100
from cluster.running import Cluster
from operating import SWD, Operator, ready, until_true

pytestmark = [pytest.mark.usefixtures("process_pods"), pytest.mark.slow]

AS_PROCESS = {steering.RUN: "process"}
LONG = 120.0
PROMPT = "once upon a time there was a machine that could not forget"


@pytest.fixture
async def serving(
    cluster: Cluster, api: Client, nodes: Nodes, tmp_path: pathlib.Path
) -> AsyncIterator[Operator]:
    """An operator that asks routers, a node for routers, two H100 nodes and three A100 nodes."""
    for gpu in (None, H100, H100, A100, A100, A100):
        await nodes.add(gpu=gpu, annotations=AS_PROCESS)
    running = Operator(cluster, api, tmp_path, askRouters=True)
    await running.start()
    try:
        yield running
        running.check()
    finally:
        await running.remove()


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny_llama.make(tmp_path_factory.mktemp("model"))


def served(weights: pathlib.Path, name: str, **spec: Any) -> Object:
    model = {"name": "tiny", "source": {"path": str(weights)}}
    fixed = {"model": model, "engine": {"name": "reference"}}
    return {
        "apiVersion": "splitwise.dev/v1alpha1",
        "kind": "SplitwiseDeployment",
        "metadata": {"name": name},
        "spec": fixed | spec,
    }


async def address(api: Client, name: str) -> str:
    """Where a ready router of the deployment listens."""
    chosen = f"splitwise.dev/deployment={name},splitwise.dev/pool=router"
    for pod in await api.list("pods", selector=chosen):
        conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
        if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
            return f"http://{pod['status']['podIP']}:8000"
    raise AssertionError("no router is ready")


async def stream(url: str, tokens: int) -> tuple[str, str]:
    """The text of a streamed completion and why it ended."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": True}
    body |= {"ignore_eos": True}
    text, finish = "", ""
    patience = aiohttp.ClientTimeout(total=LONG)
    async with (
        aiohttp.ClientSession(timeout=patience) as session,
        session.post(f"{url}/v1/completions", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                text += choice["text"]
                finish = choice["finish_reason"] or finish
    return text, finish


HA = {"design": "HA", "pools": {"prompt": {"replicas": 1}, "token": {"replicas": 1}}}


@pytest.mark.fault("GPU-2")
async def test_ha_serves_what_one_machine_serves(
    api: Client, nodes: Nodes, serving: Operator, weights: pathlib.Path
) -> None:
    await api.apply(served(weights, "split", **HA))
    await api.apply(served(weights, "whole", pools={"mixed": {}}))
    item = await wait_for(api, SWD, "split", ready, seconds=LONG)
    assert item["status"]["pools"]["prompt"]["gpuProduct"] == H100.product
    assert item["status"]["pools"]["token"]["gpuProduct"] == A100.product
    await wait_for(api, SWD, "whole", ready, seconds=LONG)
    split = await stream(await address(api, "split"), 24)
    whole = await stream(await address(api, "whole"), 24)
    assert split == whole
    assert split[1] == "length"

    def told(item: Object) -> bool:
        status = item["status"]
        return status["router"].get("splitShare") == "100%" and status["summary"]["transport"] in (
            "shm",
            "tcp",
        )

    await wait_for(api, SWD, "split", told, seconds=LONG)


@pytest.mark.fault("DRAIN-2", "DRAIN-3")
async def test_no_stream_is_cut_while_the_token_pool_scales(
    api: Client, nodes: Nodes, serving: Operator, weights: pathlib.Path
) -> None:
    await api.apply(served(weights, "split", **HA))
    await wait_for(api, SWD, "split", ready, seconds=LONG)
    url = await address(api, "split")
    expected = await stream(url, 40)
    going = True

    async def client() -> int:
        count = 0
        while going:
            assert await stream(url, 40) == expected
            count += 1
        return count

    clients = [asyncio.create_task(client()) for _ in range(3)]
    for replicas in (2, 1):
        await api.patch(SWD, "split", {"spec": {"pools": {"token": {"replicas": replicas}}}})
        await wait_for(api, SWD, "split", ready, seconds=LONG)

        async def there(count: int = replicas) -> bool:
            chosen = "splitwise.dev/deployment=split,splitwise.dev/pool=token"
            return len(await api.list("pods", selector=chosen)) == count

        await until_true(there, f"{replicas} token machines", seconds=LONG)
    going = False
    assert all(count > 0 for count in await asyncio.gather(*clients))
