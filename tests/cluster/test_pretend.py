"""Pretend nodes take pods as real ones do, and misbehave as their annotations say."""

import pytest

from cluster import steering
from cluster.client import Client
from cluster.expect import condition, ready_replicas, restarts, waiting
from cluster.fixtures import Nodes
from cluster.follow import WaitFailed, wait_for, wait_gone
from cluster.nodes import A100, H100
from cluster.workloads import container, pod, pod_spec, workload


def on(gpu_product: str, **more: object) -> dict[str, object]:
    """A pod's spec that wants eight cards of one kind."""
    selector = {"nvidia.com/gpu.product": gpu_product}
    return pod_spec(container(gpus=8), nodeSelector=selector, **more)


async def test_the_scheduler_picks_the_node_with_the_right_cards(kube: Client, nodes: Nodes) -> None:
    await nodes.add(gpu=A100)
    wanted = await nodes.add(gpu=H100)
    await kube.apply(pod("p", on(H100.product)))
    placed = await wait_for(kube, "pods", "p", condition("Ready"))
    assert placed["spec"]["nodeName"] == wanted
    assert placed["status"]["phase"] == "Running"
    assert placed["status"]["podIP"].startswith("10.")


async def test_init_containers_end_unless_told_to_fail(kube: Client, nodes: Nodes) -> None:
    await nodes.add()
    spec = pod_spec(initContainers=[container() | {"name": "first"}])
    await kube.apply(pod("p", spec), pod("q", spec, annotations={steering.EXIT_CODE: "2"}))
    await wait_for(kube, "pods", "p", condition("Ready"))
    broken = await wait_for(kube, "pods", "q", condition("Initialized", "False"))
    assert not condition("Ready")(broken)


async def test_a_pod_without_room_waits_and_the_failure_tells_why(kube: Client, nodes: Nodes) -> None:
    await nodes.add(gpu=H100, count=4)
    await kube.apply(pod("p", on(H100.product)))
    reason = condition("PodScheduled", "False", "Unschedulable")
    await wait_for(kube, "pods", "p", reason)
    with pytest.raises(WaitFailed, match=r"Insufficient nvidia\.com/gpu"):
        await wait_for(kube, "pods", "p", condition("Ready"), seconds=0.5)
    await nodes.add(gpu=H100)
    await wait_for(kube, "pods", "p", condition("Ready"))


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_workloads_scale_up_and_down(kube: Client, nodes: Nodes, kind: str) -> None:
    await nodes.add()
    resource = kind.lower() + "s.apps"
    await kube.apply(workload(kind, "w", 1))
    await wait_for(kube, resource, "w", ready_replicas(1))
    await kube.scale(resource, "w", 4)
    await wait_for(kube, resource, "w", ready_replicas(4))
    addresses = [item["status"]["podIP"] for item in await kube.list("pods")]
    assert len(set(addresses)) == 4
    await kube.scale(resource, "w", 2)
    await wait_for(kube, resource, "w", ready_replicas(2))


async def test_a_crash_loop_looks_like_one_and_can_be_cured(kube: Client, nodes: Nodes) -> None:
    await nodes.add()
    await kube.apply(pod("p", annotations={steering.EXIT_CODE: "3"}))
    await wait_for(kube, "pods", "p", restarts(2))
    looping = await wait_for(kube, "pods", "p", waiting("CrashLoopBackOff"))
    [status] = looping["status"]["containerStatuses"]
    assert looping["status"]["phase"] == "Running"
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert not status["ready"]
    await kube.annotate("pods", "p", {steering.EXIT_CODE: None})
    await wait_for(kube, "pods", "p", condition("Ready"))


async def test_readiness_follows_the_annotation(kube: Client, nodes: Nodes) -> None:
    await nodes.add()
    await kube.apply(pod("p", annotations={steering.READY: "false"}))
    unready = condition("Ready", "False", "ContainersNotReady")
    await wait_for(kube, "pods", "p", lambda p: p["status"]["phase"] == "Running" and unready(p))
    await kube.annotate("pods", "p", {steering.READY: "true"})
    await wait_for(kube, "pods", "p", condition("Ready"))
    await kube.annotate("pods", "p", {steering.READY: "false"})
    await wait_for(kube, "pods", "p", unready)


async def test_a_slow_start_runs_before_it_is_ready(kube: Client, nodes: Nodes) -> None:
    await nodes.add(annotations={steering.READY_AFTER: "1"})
    await kube.apply(pod("p"))
    running = await wait_for(kube, "pods", "p", lambda p: p["status"]["phase"] == "Running")
    assert not condition("Ready")(running)
    await wait_for(kube, "pods", "p", condition("Ready"))


async def test_an_image_that_cannot_be_pulled(kube: Client, nodes: Nodes) -> None:
    await nodes.add()
    await kube.apply(pod("p", annotations={steering.WAITING: "ImagePullBackOff"}))
    stuck = await wait_for(kube, "pods", "p", waiting("ImagePullBackOff"))
    assert stuck["status"]["phase"] == "Pending"


async def test_a_job_completes(kube: Client, nodes: Nodes) -> None:
    await nodes.add()
    template = {
        "metadata": {"annotations": {steering.EXIT_CODE: "0"}},
        "spec": pod_spec(restartPolicy="Never"),
    }
    metadata = {"name": "j"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
    await kube.apply(job | {"spec": {"template": template}})
    await wait_for(kube, "jobs.batch", "j", condition("Complete"))


async def test_pods_of_a_lost_node_move_to_another(kube: Client, nodes: Nodes) -> None:
    lost = await nodes.add()
    await kube.apply(workload("Deployment", "w", 1))
    await wait_for(kube, "deployments.apps", "w", ready_replicas(1))
    other = await nodes.add()
    await kube.annotate("nodes", lost, {steering.NODE_STATE: "lost"})
    await wait_for(kube, "nodes", lost, condition("Ready", "Unknown"))
    [gone] = await kube.list("pods")
    await wait_for(kube, "pods", gone["metadata"]["name"], lambda p: "deletionTimestamp" in p["metadata"])
    await wait_for(kube, "deployments.apps", "w", ready_replicas(1))
    placed = {p["spec"]["nodeName"] for p in await kube.list("pods") if condition("Ready")(p)}
    assert placed == {other}
    await kube.annotate("nodes", lost, {steering.NODE_STATE: None})
    await wait_for(kube, "nodes", lost, condition("Ready"))
    await wait_gone(kube, "pods", gone["metadata"]["name"])


async def test_a_removed_node_takes_its_pods_along(kube: Client, nodes: Nodes) -> None:
    name = await nodes.add()
    await kube.apply(pod("p"))
    await wait_for(kube, "pods", "p", condition("Ready"))
    await nodes.remove(name)
    await wait_gone(kube, "pods", "p")


@pytest.mark.slow
async def test_the_control_plane_finds_out_about_a_silent_node(kube: Client, nodes: Nodes) -> None:
    name = await nodes.add()
    await kube.apply(pod("p"))
    await wait_for(kube, "pods", "p", condition("Ready"))
    await kube.annotate("nodes", name, {steering.NODE_STATE: "silent"})
    await wait_for(kube, "pods", "p", condition("Ready", "False"), seconds=60)
    await kube.annotate("nodes", name, {steering.NODE_STATE: None})
    await wait_for(kube, "nodes", name, condition("Ready"))
