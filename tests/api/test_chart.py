"""The chart on a real API server: install, serve, upgrade, test, uninstall; its pods run real programs."""

import contextlib
import json
import pathlib

import pytest
import yaml

import tiny_llama
from cluster import steering
from cluster.client import Client, Object
from cluster.fixtures import Nodes
from cluster.follow import WaitFailed, wait_for
from cluster.nodes import A100, H100
from cluster.process import ProcessFailed
from cluster.running import Cluster
from operating import CHART, SWD, ready, until_true

pytestmark = [pytest.mark.usefixtures("process_pods"), pytest.mark.slow]

AS_PROCESS = {steering.RUN: "process"}
LONG = 120.0


def values(api: Client, **more: object) -> list[str]:
    """Flags of helm install and upgrade."""
    chosen: Object = {
        "namespaces": [api.namespace],
        "podAnnotations": AS_PROCESS,
        "settings": {"leaseSeconds": 3},
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


@pytest.mark.fault("INSTALL-3", "STATUS-5")
async def test_from_install_to_nothing_left(
    cluster: Cluster, kube: Client, nodes: Nodes, tmp_path: pathlib.Path
) -> None:
    for gpu in (None, H100, A100):
        await nodes.add(gpu=gpu, annotations=AS_PROCESS)
    where = ["-n", kube.namespace]
    await cluster.helm("install", "ops", str(CHART), *where, *values(kube), "--wait", "--timeout=90s")
    await kube.apply(served(tiny_llama.make(tmp_path / "model")))
    await wait_for(kube, SWD, "split", ready, seconds=LONG)
    chosen = {"deployment": f"{kube.namespace}/split"}
    flags = values(kube, test=chosen)
    await cluster.helm("upgrade", "ops", str(CHART), *where, *flags, "--wait", "--timeout=90s")
    await cluster.helm("test", "ops", *where, "--timeout=90s")
    [pod] = await kube.list("pods", selector="app.kubernetes.io/name=splitwise-operator")
    log = cluster.pod_log(kube.namespace, pod["metadata"]["name"], "operator")
    assert "forbidden" not in log.lower()
    assert "Traceback" not in log
    await cluster.kubectl("delete", "swd", "split", "--cascade=foreground", *where, "--timeout=90s")
    await cluster.helm("uninstall", "ops", *where, "--wait", "--timeout=90s")

    left: list[str] = []

    async def nothing() -> bool:
        left[:] = await leftovers(kube, nodes)
        return not left

    with contextlib.suppress(WaitFailed):
        await until_true(nothing, "nothing is left")
    assert left == []


async def leftovers(kube: Client, nodes: Nodes) -> list[str]:
    """Whatever the chart or the operator has left: objects here and cluster-wide, labels on nodes."""
    found = []
    kinds = ["pods", "services", "configmaps", "secrets", "serviceaccounts", "statefulsets.apps"]
    kinds += ["deployments.apps", "jobs.batch", "leases.coordination.k8s.io"]
    kinds += ["roles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io"]
    for kind in kinds:
        found += [f"{kind}/{item['metadata']['name']}" for item in await kube.list(kind)]
    for kind in ("clusterroles", "clusterrolebindings"):
        listed = await kube.list(f"{kind}.rbac.authorization.k8s.io")
        found += [item["metadata"]["name"] for item in listed if kube.namespace in item["metadata"]["name"]]
    for name in nodes.names:
        labels = (await kube.get("nodes", name))["metadata"]["labels"]
        found += [label for label in labels if f".{kube.namespace}.splitwise.dev/" in label]
    standard = {"configmaps/kube-root-ca.crt", "serviceaccounts/default"}
    return [name for name in found if name not in standard]


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
