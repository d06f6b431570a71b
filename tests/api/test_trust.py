"""The link Secret on a real API server: keys are replaced with the chart's rights, and no pod restarts."""

import base64
import itertools
import pathlib
from collections.abc import AsyncIterator

import pytest

import tiny_llama
from cluster import steering
from cluster.client import Client, Object
from cluster.fixtures import Nodes
from cluster.follow import wait_for
from cluster.running import Cluster
from operating import SWD, WAIT, Operator, operating, ready, tiny, until_true
from streams import router, stream, streaming

LONG = 120.0
STEP = "splitwise.dev/link-step"


@pytest.fixture
async def hasty(cluster: Cluster, api: Client, tmp_path: pathlib.Path) -> AsyncIterator[Operator]:
    """An operator that finds keys old after two seconds."""
    async with operating(cluster, api, tmp_path, linkRotation="2s", linkSettling="2s") as running:
        yield running


@pytest.fixture
async def brisk(cluster: Cluster, api: Client, tmp_path: pathlib.Path) -> AsyncIterator[Operator]:
    """An operator whose steps leave pretend nodes, which look every second, time to bring keys to pods."""
    settings = {"askRouters": True, "linkRotation": "5s", "linkSettling": "6s"}
    async with operating(cluster, api, tmp_path, **settings) as running:
        yield running


def keys(secret: Object) -> tuple[str, ...]:
    return tuple(base64.b64decode(secret["data"]["secret"]).decode().split("\n"))


async def test_keys_are_replaced_and_no_pod_restarts(api: Client, nodes: Nodes, hasty: Operator) -> None:
    await nodes.add()
    await api.apply(tiny(api))
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


@pytest.mark.slow
@pytest.mark.usefixtures("process_pods")
async def test_machines_that_join_during_a_rotation_meet_all_others_and_no_stream_is_cut(
    api: Client, nodes: Nodes, brisk: Operator, tmp_path: pathlib.Path
) -> None:
    for _ in range(5):
        await nodes.add(annotations={steering.RUN: "process"})
    model = {"name": "tiny", "source": {"path": str(tiny_llama.make(tmp_path / "model"))}}
    await api.apply(tiny(api, model=model))
    await wait_for(api, SWD, "tiny", ready, seconds=LONG)
    url = await router(api, "tiny")

    async def at(step: str) -> None:
        async def there() -> bool:
            return bool((await api.get("secrets", "tiny-link"))["metadata"]["annotations"][STEP] == step)

        await until_true(there, f"the link Secret is {step}", LONG)

    async def joined(**sizes: int) -> None:
        pools = {role: {"replicas": size} for role, size in sizes.items()}
        await api.patch(SWD, "tiny", {"spec": {"pools": pools}})
        summary = {role: f"{size}/{size}" for role, size in sizes.items()}
        await wait_for(
            api,
            SWD,
            "tiny",
            lambda item: ready(item) and summary.items() <= item["status"]["summary"].items(),
            seconds=LONG,
        )

    async with streaming(url, await stream(url), clients=2):
        await at("announced")
        await joined(token=2)
        await at("adopted")
        await joined(prompt=2)
        await at("settled")
        await joined(token=1)
        await joined(token=2)
