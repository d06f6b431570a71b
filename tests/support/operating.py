"""A real operator against a real API server, with exactly the rights the chart gives it."""

import asyncio
import contextlib
import json
import os
import pathlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import yaml

from cluster.binaries import REPOSITORY
from cluster.client import Client, Object
from cluster.follow import WaitFailed, wait_for
from cluster.keys import write_kubeconfig
from cluster.process import Process, tail
from cluster.running import Cluster
from deployments import deployment

CHART = REPOSITORY / "charts" / "splitwise-operator"
NAME = "operator"


def crds() -> list[Object]:
    """The generated CRDs."""
    files = sorted((REPOSITORY / "operator" / "crds").glob("*.yaml"))
    return [yaml.safe_load(file.read_text()) for file in files]


def rules(name: str) -> list[Object]:
    """RBAC rules as the chart ships them: "namespaced", "cluster" or "own"."""
    return list(yaml.safe_load((CHART / "files" / f"rules-{name}.yaml").read_text()))


async def install_crds(kube: Client) -> None:
    """Apply the CRDs and wait until they are served."""
    kind = "customresourcedefinitions.apiextensions.k8s.io"
    for crd in crds():
        await kube.apply(crd)
        await wait_for(kube, kind, crd["metadata"]["name"], served)


def served(crd: Object) -> bool:
    conditions = {c["type"]: c["status"] for c in crd.get("status", {}).get("conditions") or []}
    return conditions.get("Established") == "True"


class Operator:
    """One operator process that serves one namespace. `start` it; `kill` and `start` again at will.

    Before it starts, `server` may be set to where it shall look for the API server."""

    def __init__(self, cluster: Cluster, kube: Client, folder: pathlib.Path, **settings: Any) -> None:
        self._cluster = cluster
        self._kube = kube
        self._folder = folder
        self.namespace = kube.namespace
        self.server = kube.url
        self.settings = {
            "namespaces": [kube.namespace],
            "askRouters": False,
            "leaseSeconds": 10,
        } | settings
        self.process: Process

    async def start(self) -> None:
        """Give it its account and rights, and start it."""
        await self._kube.apply(*self._rights())
        kubeconfig = await self._kubeconfig()
        file = self._folder / "settings.yaml"
        file.write_text(yaml.safe_dump(self.settings))
        command = [sys.executable, "-P", "-m", "controlplane", "run", "--settings", str(file)]
        environment = self._cluster.environment | {"KUBECONFIG": str(kubeconfig)}
        environment.pop("PYTHONPATH", None)
        self.process = Process(command, log=self._folder / "operator.log", environment=environment)
        self.process.start()

    def lines(self) -> list[Object]:
        """Everything it has logged."""
        text = self.process.log.read_text() if self.process.log.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def check(self) -> None:
        """It runs, and nothing has gone wrong in it: no traceback, no call that was forbidden (INSTALL-3)."""
        self.process.check()
        text = self.process.log.read_text()
        assert "Traceback" not in text, tail(self.process.log)
        assert "forbidden" not in text.lower(), tail(self.process.log)

    async def _kubeconfig(self) -> pathlib.Path:
        path = await self._kube.path("serviceaccounts", NAME)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = (await self._kube.request("POST", path + "/token", body))["status"]["token"]
        plane = self._cluster.control_plane
        target = self._folder / "operator.kubeconfig"
        authority = plane.keys.certificate if plane else None
        written = write_kubeconfig(target, self.server, token=token, authority=authority)
        config = yaml.safe_load(written.read_text())
        config["contexts"][0]["context"]["namespace"] = self.namespace
        written.write_text(yaml.safe_dump(config))
        return written

    def _rights(self) -> list[Object]:
        space, unique = self.namespace, f"{NAME}-{self.namespace}"
        subject = {"kind": "ServiceAccount", "name": NAME, "namespace": space}
        lease = {"apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "splitwise-operator"}}
        objects: list[Object] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}}]
        objects.append(lease | {"kind": "Lease"})
        for kind, name, chosen in (
            ("Role", NAME, rules("namespaced") + rules("own")),
            ("ClusterRole", unique, rules("cluster")),
        ):
            api = {"apiVersion": "rbac.authorization.k8s.io/v1"}
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
            objects.append(api | {"kind": kind, "metadata": {"name": name}, "rules": chosen})
            bound = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
            objects.append(api | {"kind": f"{kind}Binding"} | bound)
        return objects

    async def remove(self) -> None:
        """Stop it and take its cluster-wide rights away."""
        self.process.stop()
        for kind in ("clusterrolebindings", "clusterroles"):
            await self._kube.delete(f"{kind}.rbac.authorization.k8s.io", f"{NAME}-{self.namespace}")


@contextlib.asynccontextmanager
async def operating(
    cluster: Cluster, kube: Client, folder: pathlib.Path, **settings: Any
) -> AsyncIterator[Operator]:
    """A running operator; it must neither die nor meet a forbidden call while the block runs."""
    running = Operator(cluster, kube, folder, **settings)
    await running.start()
    try:
        yield running
        running.check()
    finally:
        await running.remove()


def tiny(kube: Client, **spec: Any) -> Object:
    """One prompt and one token machine without GPUs; keyword arguments replace fields of the spec."""
    fixed = {"model": {"name": "tiny", "source": {"path": "/models/tiny"}}, "engine": {"name": "reference"}}
    item = deployment(**(fixed | spec))
    item["metadata"]["namespace"] = kube.namespace
    return item


def ready(item: Object) -> bool:
    """A deployment that is Ready at its latest generation."""
    return is_so("Ready", "True")(item)


def is_so(kind: str, status: str, reason: str = "") -> Callable[[Object], bool]:
    """The condition has this status (and reason) and speaks of the latest generation."""

    def holds(item: Object) -> bool:
        seen = item.get("status", {})
        if seen.get("observedGeneration") != item["metadata"]["generation"]:
            return False
        return any(
            c["type"] == kind and c["status"] == status and reason in ("", c["reason"])
            for c in seen.get("conditions", [])
        )

    return holds


async def until_quiet(kube: Client, resource: str, name: str, seconds: float = 2.0) -> Object:
    """The object, once its resourceVersion has not moved for so long; WaitFailed after 30 s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 30
    last, since = await kube.get(resource, name), loop.time()
    while loop.time() < deadline:
        await asyncio.sleep(0.2)
        now = await kube.get(resource, name)
        if now["metadata"]["resourceVersion"] != last["metadata"]["resourceVersion"]:
            last, since = now, loop.time()
        elif loop.time() - since > seconds:
            return last
    raise WaitFailed(f"{resource} {name} does not come to rest")


async def until_true(holds: Callable[[], Awaitable[bool]], what: str, seconds: float = 30.0) -> None:
    """Ask again and again; WaitFailed, saying what was waited for, after so long."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await holds():
        if asyncio.get_running_loop().time() > deadline:
            raise WaitFailed(f"not so after {seconds:.0f} s: {what}")
        await asyncio.sleep(0.2)


SWD = "splitwisedeployments.splitwise.dev"
POOLS = "splitwisepools.splitwise.dev"
SETS = "statefulsets.apps"
WAIT = float(os.environ.get("SPLITWISE_WAIT", "30"))
