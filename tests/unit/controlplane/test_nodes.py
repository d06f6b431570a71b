"""Labels on nodes, and whose business a change of a node is."""

from typing import Any

import pytest

from controlplane import nodes
from controlplane.api import parse
from controlplane.gpus import Node
from controlplane.observe import Pod, node_of
from controlplane.target import Target
from controlplane.watch import NodeStore
from deployments import deployment

MINE = "tiny.default.splitwise.dev/"


def item(name: str = "n", *, gpus: int = 8, label: str = "other") -> dict[str, Any]:
    product = {"nvidia.com/gpu.product": "NVIDIA-H100-PCIe"}
    return {
        "metadata": {"name": name, "labels": product | {label: "true"}},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}, "conditions": [{"type": "Ready"}]},
    }


def target() -> Target:
    gpu = {"gpu": {"family": "H100", "count": 8}}
    return Target(parse(deployment(pools={"prompt": gpu, "token": gpu})))


def test_a_heartbeat_is_nobodys_business() -> None:
    store = NodeStore()
    store.fill([item()])
    beat = item() | {"spec": {"taints": []}}
    beat["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert store.changed(beat, gone=False) == set()


@pytest.mark.parametrize("after", [item(gpus=4), item("new")])
def test_gpus_that_come_or_go_may_concern_all(after: dict[str, Any]) -> None:
    store = NodeStore()
    store.fill([item()])
    assert store.changed(after, gone=False) is None


def test_a_node_that_goes_concerns_all() -> None:
    store = NodeStore()
    store.fill([item()])
    assert store.changed(item(), gone=True) is None
    assert store() == []


def test_a_label_of_ours_concerns_its_deployment() -> None:
    store = NodeStore()
    store.fill([item()])
    assert store.changed(item(label=MINE + "prompt"), gone=False) == {("default", "tiny")}


def test_occupied_nodes_are_labelled_and_left_ones_unlabelled() -> None:
    found = [node_of(item("a")), node_of(item("b", label=MINE + "token"))]
    pods = [Pod("p-0", "prompt", "t", node="a"), Pod("r-0", "router", "", node="a")]
    wanted = nodes.wanted(target(), found, pods)
    assert wanted == {"a": {MINE + "prompt": "true"}}
    assert {each.node: dict(each.labels) for each in nodes.changes(MINE, wanted, found)} == {
        "a": {MINE + "prompt": "true"},
        "b": {MINE + "token": None},
    }


def test_an_odd_spelling_is_labelled_with_its_family() -> None:
    odd = Node("odd", {"nvidia.com/gpu.product": "NVIDIA-H100-PCIe-94GB-NVL"}, gpus=8)
    small = Node("small", {"nvidia.com/gpu.product": "NVIDIA-H100-PCIe-94GB-NVL"}, gpus=4)
    assert nodes.wanted(target(), [odd, small], []) == {"odd": {MINE + "gpu": "H100"}}


def test_labels_say_whose_they_are() -> None:
    labels = {MINE + "gpu": "H100", "splitwise.dev/x": "y", "a.b.c.splitwise.dev/z": "no"}
    assert nodes.owners([Node("n", labels, gpus=0)]) == {("default", "tiny")}
