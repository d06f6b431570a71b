"""The parts of the harness that need no cluster."""

import importlib.util
import pathlib
from types import ModuleType

import pytest

from cluster import binaries, steering
from cluster.addresses import Addresses
from cluster.binaries import REPOSITORY
from cluster.client import Object, documents
from cluster.container import StartRefused
from cluster.fields import expand
from cluster.nodes import A100, node
from cluster.podsources import PodSources
from cluster.podstatus import ContainerState, phase, pod_status
from cluster.sandbox import Sandbox
from cluster.workloads import container, pod, pod_spec

EARLIER, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pods_word_beats_the_nodes() -> None:
    node_says = {steering.RUN: "process", steering.READY: "false"}
    script = steering.script(node_says, {steering.READY: "true", steering.EXIT_CODE: "3"})
    assert script == steering.Script(process=True, exit_code=3)
    assert steering.script({}, {}) == steering.Script()


def test_a_misspelt_node_state_is_an_error() -> None:
    with pytest.raises(ValueError, match="lots"):
        steering.node_state({steering.NODE_STATE: "lots"})


def state(code: int | None = None, *, init: bool = False, running: bool = True) -> ContainerState:
    shown: Object = {"running": {}} if running else {"waiting": {"reason": "ContainerCreating"}}
    if code is not None:
        shown = {"terminated": {"exitCode": code}}
    return ContainerState("main", "image", init=init, state=shown, ready=code is None and running)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([state(running=False)], "Pending"),
        ([state(0, init=True), state(running=False)], "Pending"),
        ([state(1, init=True), state(running=False)], "Failed"),
        ([state()], "Running"),
        ([state(0), state()], "Running"),
        ([state(0), state(0)], "Succeeded"),
        ([state(0), state(2)], "Failed"),
    ],
)
def test_the_phase_of_a_pod(states: list[ContainerState], expected: str) -> None:
    assert phase(states) == expected


def test_a_transition_time_moves_only_when_a_condition_flips() -> None:
    item = pod("p")
    first = pod_status(item, [state()], ip="1.2.3.4", host_ip="1.2.3.1", now=EARLIER)
    item["status"] = first
    one = state()
    one.ready = False
    second = pod_status(item, [one], ip="1.2.3.4", host_ip="1.2.3.1", now=NOW)
    moved = {c["type"] for c in second["conditions"] if c["lastTransitionTime"] == NOW}
    assert moved == {"ContainersReady", "Ready"}
    assert second["startTime"] == EARLIER


def test_a_closed_readiness_gate_keeps_a_pod_unready() -> None:
    item = pod("p", pod_spec(readinessGates=[{"conditionType": "drained"}]))

    def ready() -> dict[str, str]:
        status = pod_status(item, [state()], ip="", host_ip="", now=NOW)
        return {c["type"]: c["status"] for c in status["conditions"]}

    assert (ready()["ContainersReady"], ready()["Ready"]) == ("True", "False")
    item["status"] = {"conditions": [{"type": "drained", "status": "True"}]}
    assert ready()["Ready"] == "True"


def test_variables_expand_as_in_a_kubelet() -> None:
    assert expand("$(A)-$(B)-$$(A)-$A", {"A": "1"}) == "1-$(B)-$(A)-$A"


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("--config=/etc/app/x.json", "--config={}/volumes/config/x.json"),
        ("/etc/app", "{}/volumes/config"),
        ("/etc/app/deep/y", "{}/volumes/deep/y"),
        ("/etc/apples /mnt/etc/app", "/etc/apples /mnt/etc/app"),
        ("http://0.0.0.0:80 [::]:80 10.0.0.0", "http://10.64.0.9:80 10.64.0.9:80 10.0.0.0"),
        ("/tmp/x", "/tmp/x"),
    ],
)
def test_paths_and_wildcards_become_local(tmp_path: pathlib.Path, text: str, local: str) -> None:
    mounts = [
        {"name": "config", "mountPath": "/etc/app"},
        {"name": "deep", "mountPath": "/etc/app/deep"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    volumes: list[Object] = [{"name": name, "emptyDir": {}} for name in ("config", "deep", "tmp")]
    item = pod("p", pod_spec(container(volumeMounts=mounts), volumes=volumes))
    sandbox = Sandbox(item, tmp_path, ip="10.64.0.9", host_ip="10.64.0.1")
    assert sandbox.localise(text) == local.format(tmp_path)


def test_a_missing_config_map_keeps_a_container_waiting() -> None:
    sources = PodSources(pod("p"))
    reference = {"name": "absent", "key": "k"}
    with pytest.raises(StartRefused, match="'absent' not found") as refused:
        sources.value({"configMapKeyRef": reference})
    assert refused.value.reason == "CreateContainerConfigError"
    assert sources.value({"configMapKeyRef": reference | {"optional": True}}) is None


def test_a_gpu_node_is_labelled_and_has_its_cards() -> None:
    made = node("n", gpu=A100, count=4, labels={"zone": "b"}, capacity={"rdma/hca": "2"})
    labels, capacity = made["metadata"]["labels"], made["status"]["capacity"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert labels["nvidia.com/gpu.count"] == capacity["nvidia.com/gpu"] == "4"
    assert (labels["zone"], capacity["rdma/hca"]) == ("b", "2")


def test_addresses_of_two_clusters_differ_and_are_reused_late() -> None:
    one, other = Addresses(0), Addresses(1)
    first, foreign = one.take(), other.take()
    assert first != foreign
    one.give_back(first)
    assert one.take() != first
    assert one.take(first) == first


def test_texts_hold_any_number_of_objects() -> None:
    assert documents(["a: 1\n---\n---\nb: 2\n", {"c": 3}]) == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_envtests_variables_come_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets, single = tmp_path / "assets", tmp_path / "my-etcd"
    assets.mkdir()
    for file in (single, assets / "etcd", assets / "kube-apiserver"):
        file.touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setenv("TEST_ASSET_ETCD", str(single))
    assert binaries.find("etcd") == single
    assert binaries.find("kube-apiserver") == assets / "kube-apiserver"
    with pytest.raises(binaries.ToolMissing, match="make tools"):
        binaries.find("kube-nothing")


def test_the_tools_folder_follows_the_environment_and_the_pins(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = tool("build")
    monkeypatch.delenv("SPLITWISE_TOOLS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = build.folder()
    assert before.is_relative_to(tmp_path / "splitwise-operator" / "tools")
    monkeypatch.setattr(build, "KUBERNETES", "v1.37.2")
    assert build.folder() != before
    monkeypatch.setenv("SPLITWISE_TOOLS", str(tmp_path / "mine"))
    assert build.folder() == tmp_path / "mine"


def test_pin_finds_the_modules_that_nobody_publishes() -> None:
    pin = tool("pin")
    text = "require (\n\tk8s.io/api v0.0.0\n\tk8s.io/klog/v2 v2.1.0\n\tk8s.io/kms v0.0.0 // x\n)"
    assert pin.staging_modules(text) == ["k8s.io/api", "k8s.io/kms"]
    assert pin.staging_version("v1.36.3") == "v0.36.3"
    with pytest.raises(SystemExit, match=r"v1\.36\.3"):
        pin.staging_version("1.36")


def test_the_modules_pin_what_the_build_stamps() -> None:
    build = tool("build")
    kubernetes = (REPOSITORY / "tools" / "kubernetes" / "go.mod").read_text()
    assert f"k8s.io/kubernetes {build.KUBERNETES} " in kubernetes
    helm = (REPOSITORY / "tools" / "helm" / "go.mod").read_text()
    assert f"helm.sh/helm/v4 {build.HELM} " in helm
