"""The autoscaler of Kubernetes owns the size of a pool, by a metric from a stand-in; we never fight it."""

import pytest

from cluster.binaries import REPOSITORY
from cluster.client import Client, Object
from cluster.controlplane import ControlPlane
from cluster.custom_metrics import custom_metrics
from cluster.fixtures import Nodes
from cluster.follow import until, wait_for
from cluster.nodes import A100, H100
from cluster.running import Cluster
from operating import NAME as OPERATOR
from operating import POOLS, SWD, WAIT, Operator, is_so, ready, until_quiet

EXAMPLE = REPOSITORY / "deploy" / "examples" / "autoscaled.yaml"
PER_MACHINE = 32  # as the example says
NAME, SCALER = "llama-auto", "llama-auto-token"


async def sized(api: Client, count: int) -> Object:
    """The deployment, Ready with so many token machines."""

    def holds(item: Object) -> bool:
        return ready(item) and bool(item["status"]["summary"]["token"] == f"{count}/{count}")

    return await wait_for(api, SWD, NAME, holds, seconds=2 * WAIT)


def writes_of_replicas(plane: ControlPlane, namespace: str) -> list[tuple[str, str]]:
    """Who wrote the size of the pool of this namespace, and by which verb, in order."""
    found = []
    for event in plane.audited():
        size = (event.get("requestObject") or {}).get("spec") or {}
        if event["objectRef"]["namespace"] == namespace and "replicas" in size:
            found.append((event["user"]["username"].rpartition(":")[2], event["verb"]))
    return found


@pytest.mark.slow
@pytest.mark.fault("STATUS-2")
async def test_an_autoscaler_is_never_fought(
    cluster: Cluster, api: Client, nodes: Nodes, operator: Operator
) -> None:
    plane = cluster.control_plane
    if plane is None:
        pytest.skip("an existing cluster's metrics are not ours to stand in for")
    await nodes.add()
    for gpu in (H100, A100, A100, A100, A100):
        await nodes.add(gpu=gpu)
    async with custom_metrics(api, plane) as load:
        load.total = PER_MACHINE // 2
        await api.apply(EXAMPLE.read_text())
        await sized(api, 1)
        await wait_for(api, SWD, NAME, is_so("ScalingReady", "True"), seconds=2 * WAIT)
        for machines in (3, 1):
            load.total = PER_MACHINE * machines
            await sized(api, machines)
            spec = {"pools": {"token": {"replicas": 7}}, "router": {"replicas": machines}}
            await api.patch(SWD, NAME, {"spec": spec})  # gives us every reason to write
            await sized(api, machines)
            enough = load.asked + 3

            def asked(enough: int = enough) -> bool:
                return load.asked >= enough

            await until(asked)  # the autoscaler has looked at it again and again
            scaler = await until_quiet(api, POOLS, SCALER)
            assert scaler["spec"]["replicas"] == machines
    writes = writes_of_replicas(plane, api.namespace)
    assert [write for write in writes if write[0] == OPERATOR] == [(OPERATOR, "create")]
    assert {who for who, _ in writes} == {OPERATOR, "horizontal-pod-autoscaler"}
