"""What lies in deploy/: examples and the way without Helm."""

from pathlib import Path

import pytest
import yaml

from cluster.binaries import REPOSITORY
from cluster.client import Client
from cluster.fixtures import Nodes
from cluster.follow import wait_for, wait_gone
from cluster.nodes import A100, H100
from cluster.running import Cluster
from operating import CHART, SWD, WAIT, Operator, is_so, ready

DEPLOY = REPOSITORY / "deploy"
READY = ("aa", "hh", "ha", "hhcap", "autoscaled", "minimal")
DESIGNS = {"aa": "AA", "hh": "HH", "ha": "HA", "hhcap": "HHcap", "autoscaled": "HA", "minimal": "HH"}
CPU_ONLY = ("local", "local-vllm", "unsplit")


def documents(example: Path) -> list[str]:
    """The objects of an example, for another namespace."""
    found = [item for item in yaml.safe_load_all(example.read_text()) if item]
    for item in found:
        item["metadata"].pop("namespace", None)
    return [yaml.safe_dump(item) for item in found]


@pytest.mark.slow
async def test_examples_become_ready(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    for gpu in (H100, H100, H100, A100, A100, A100, A100, A100):
        await nodes.add(gpu=gpu)
    for name in READY:
        example = DEPLOY / "examples" / f"{name}.yaml"
        [item, *_] = await api.apply(*documents(example))
        made = item["metadata"]["name"]
        found = await wait_for(api, SWD, made, ready, seconds=WAIT)
        assert found["status"]["design"] == DESIGNS[name], name
        await api.delete("horizontalpodautoscalers.autoscaling", "llama-auto-token")
        await api.request("DELETE", await api.path(SWD, made), {"propagationPolicy": "Foreground"})
        await wait_gone(api, SWD, made, seconds=WAIT)


async def test_the_other_examples_say_what_they_lack(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    lacking = {"power-capped": "RDMAUnavailable", "heterogeneous": "NoMatchingNodes"}
    lacking |= dict.fromkeys(CPU_ONLY, "InvalidSpec")
    assert {path.stem for path in (DEPLOY / "examples").glob("*.yaml")} == {*READY, *lacking}
    for name, reason in lacking.items():
        [item] = await api.apply(*documents(DEPLOY / "examples" / f"{name}.yaml"))
        await wait_for(api, SWD, item["metadata"]["name"], is_so("Ready", "False", reason), seconds=WAIT)


async def test_kustomize_is_the_chart(cluster: Cluster, api: Client) -> None:
    flags = ("-n", "splitwise-system", "--no-hooks")
    rendered = await cluster.helm("template", "splitwise", str(CHART), *flags)
    written = (DEPLOY / "kustomize" / "operator.yaml").read_text()
    assert list(yaml.safe_load_all(rendered)) == list(yaml.safe_load_all(written))
    out = await cluster.kubectl("kustomize", str(DEPLOY / "kustomize"))
    kinds = [item["kind"] for item in yaml.safe_load_all(out)]
    assert kinds.count("CustomResourceDefinition") == 2
    assert {"Namespace", "Deployment", "Lease", "ClusterRole"} <= set(kinds)
    await cluster.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", text=only_cluster(out))


def only_cluster(text: str) -> str:
    """What can be tried without its namespace."""
    kinds = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Namespace")
    return yaml.safe_dump_all([item for item in yaml.safe_load_all(text) if item["kind"] in kinds])
