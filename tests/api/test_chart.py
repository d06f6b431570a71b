"""What the chart is, and what it refuses. test_acceptance installs, upgrades, tests and uninstalls it."""

import json
import pathlib

import pytest
import yaml

from cluster import steering
from cluster.client import Client, Object
from cluster.fixtures import Nodes
from cluster.follow import wait_for
from cluster.process import ProcessFailed
from cluster.running import Cluster
from operating import CHART, SWD

pytestmark = [pytest.mark.usefixtures("process_pods"), pytest.mark.slow]

AS_PROCESS = {steering.RUN: "process"}
LONG = 120.0


def values(api: Client, **more: object) -> list[str]:
    """Flags of helm install and upgrade."""
    chosen: Object = {
        "namespaces": [api.namespace],
        "podAnnotations": AS_PROCESS,
        "settings": {"leaseSeconds": 10},
        "crds": {"keep": False},
    }
    return [f"--set-json={key}={json.dumps(value)}" for key, value in (chosen | more).items()]


def served(weights: pathlib.Path) -> Object:
    return {
        "apiVersion": "splitwise.dev/v1alpha1",
        "kind": "SplitwiseDeployment",
        "metadata": {"name": "split"},
        "spec": {
            "model": {"name": "tiny", "source": {"path": str(weights)}},
            "engine": {"name": "reference"},
            "design": "HA",
            "pools": {"prompt": {"replicas": 1}, "token": {"replicas": 1}},
        },
    }


@pytest.mark.fault("INSTALL-1")
def test_crds_are_small_and_plain() -> None:
    for path in (CHART / "crds").glob("*.yaml"):
        text = path.read_text()
        assert len(text) < 256 * 1024
        assert "{{" not in text
        assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"


@pytest.mark.fault("INSTALL-2")
async def test_an_umbrella_with_a_deployment_inside_installs_at_once(
    cluster: Cluster, kube: Client, nodes: Nodes, tmp_path: pathlib.Path
) -> None:
    await nodes.add(annotations=AS_PROCESS)
    umbrella = tmp_path / "umbrella"
    (umbrella / "templates").mkdir(parents=True)
    (umbrella / "charts").mkdir()
    (umbrella / "charts" / "splitwise-operator").symlink_to(CHART)
    (umbrella / "Chart.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v2", "name": "u", "version": "0.1.0"})
    )
    (umbrella / "templates" / "swd.yaml").write_text(yaml.safe_dump(served(tmp_path)))
    mine = [flag.replace("--set-json=", "--set-json=splitwise-operator.", 1) for flag in values(kube)]
    await cluster.helm("install", "u", str(umbrella), "-n", kube.namespace, *mine)
    await wait_for(kube, SWD, "split", lambda item: "status" in item, seconds=LONG)
    await kube.delete(SWD, "split")
    await cluster.helm("uninstall", "u", "-n", kube.namespace, "--wait", "--timeout=90s")


async def test_wrong_values_are_refused(cluster: Cluster, kube: Client) -> None:
    wrong = ["--set-json=replicas=9", '--set-json=settings={"unknown": 1}']
    for flag in wrong:
        with pytest.raises(ProcessFailed, match="schema"):
            await cluster.helm("install", "ops", str(CHART), "-n", kube.namespace, flag, "--dry-run=client")
