"""The operator at scale: many deployments over many nodes on a real API server, without pods.

    python bench/operator_scale.py --deployments 100 --nodes 1000

Prints, as JSON: seconds from an edit to its child being changed (p50, p99); what an edit costs the operator
until all is still again, in passes, calls to the API server and CPU time; writes in a minute at rest (as the
API server counts them, of all clients, leases left out; and the operator's own, its lease included); and the
operator's resident memory. The costs mean something on a busy computer too, the seconds do not.
"""

import argparse
import asyncio
import dataclasses
import json
import pathlib
import re
import sys
import tempfile
import time

import aiohttp

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))

from cluster import network  # noqa: E402
from cluster.client import Client, Object  # noqa: E402
from cluster.follow import wait_for  # noqa: E402
from cluster.nodes import H100, gpu_labels  # noqa: E402
from cluster.process import Process  # noqa: E402
from cluster.running import Cluster  # noqa: E402
from operating import SETS, SWD, install_crds  # noqa: E402

WRITING = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$")
VERBS = {"APPLY", "PATCH", "POST", "PUT", "DELETE"}
LEFT_OUT = {"leases", "events", "tokenreviews", "subjectaccessreviews"}
REST_SECONDS = 60.0


def node(number: int) -> Object:
    name = f"gpu-{number}"
    metadata = {"name": name, "labels": gpu_labels(H100, 8) | {"kubernetes.io/hostname": name}}
    resources = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "1Ti", "pods": "100"}
    status = {"capacity": resources, "allocatable": resources}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


def deployment(number: int) -> Object:
    spec = {"model": {"name": "m"}, "design": "HH"}
    spec["pools"] = {"prompt": {"replicas": 1}, "token": {"replicas": 1}}
    head = {"apiVersion": "splitwise.dev/v1alpha1", "kind": "SplitwiseDeployment"}
    return head | {"metadata": {"name": f"d{number}"}, "spec": spec}


def writes(cluster: Cluster) -> float:
    """Writing requests so far, by the API server's own count."""
    assert cluster.control_plane is not None
    _, text = cluster.control_plane.get("/metrics")
    total = 0.0
    for line in text.decode().splitlines():
        if found := WRITING.match(line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
            if labels.get("verb") in VERBS and labels.get("resource") not in LEFT_OUT:
                total += float(found[2])
    return total


async def edit(kube: Client, number: int, replicas: int) -> float:
    """Seconds until the prompt pool's StatefulSet has the new size."""
    [workload] = await kube.list(
        SETS, selector=f"splitwise.dev/deployment=d{number},splitwise.dev/pool=prompt"
    )
    begun = time.perf_counter()
    await kube.patch(SWD, f"d{number}", {"spec": {"pools": {"prompt": {"replicas": replicas}}}})
    name = workload["metadata"]["name"]
    await wait_for(kube, SETS, name, lambda item: item["spec"]["replicas"] == replicas)
    return time.perf_counter() - begun


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What the operator has spent since its start."""

    passes: float
    calls: float
    writes: float
    cpu_seconds: float

    def since(self, before: "Cost", edits: int) -> Object:
        """Per edit."""
        return {
            "passes": round((self.passes - before.passes) / edits, 2),
            "calls": round((self.calls - before.calls) / edits, 1),
            "cpu_ms": round((self.cpu_seconds - before.cpu_seconds) / edits * 1000, 1),
        }


async def spent(observe: str) -> Cost:
    """By the operator's own metrics."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{observe}/metrics") as answer,
    ):
        text = await answer.text()

    def total(name: str) -> float:
        values = re.findall(rf"^{name}(?:\{{.*\}})? ([0-9.e+]+)$", text, re.MULTILINE)
        return sum(map(float, values))

    return Cost(
        total("splitwise_operator_passes_total"),
        total("splitwise_operator_calls"),
        total("splitwise_operator_writes"),
        total("process_cpu_seconds_total"),
    )


async def until_still(observe: str) -> Cost:
    """Until the operator has made no pass for five seconds."""
    last = await spent(observe)
    while True:
        await asyncio.sleep(5)
        now = await spent(observe)
        if now.passes == last.passes:
            return now
        last = now


def resident_mib(process: Process) -> float:
    """Of the operator and whatever wraps it."""
    assert process._child is not None
    text = pathlib.Path(f"/proc/{process._child.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


async def measure(cluster: Cluster, folder: pathlib.Path, *, deployments: int, nodes: int) -> Object:
    async with cluster.client() as kube:
        await install_crds(kube)
        for number in range(nodes):
            await kube.create(node(number))
        metadata = {"name": "splitwise-operator", "namespace": "default"}
        await kube.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata})
        (folder / "settings.yaml").write_text("askRouters: false\nresyncSeconds: 3600\n")
        command = [
            sys.executable,
            "-P",
            "-m",
            "controlplane",
            "run",
            "--settings",
            str(folder / "settings.yaml"),
        ]
        observe = f"127.0.0.1:{network.free_port()}"
        command += ["--observe", observe]
        environment = cluster.environment | {"KUBECONFIG": str(cluster.kubeconfig)}
        operator = Process(command, log=folder / "operator.log", environment=environment)
        operator.start()
        try:
            begun = time.perf_counter()
            for number in range(deployments):
                await kube.apply(deployment(number))
            while len(await kube.list(SETS)) < 2 * deployments:
                operator.check()
                await asyncio.sleep(0.5)
            made = time.perf_counter() - begun
            idle = await until_still(observe)
            took = sorted([await edit(kube, number, 2) for number in range(deployments)])
            cost = (await until_still(observe)).since(idle, deployments)
            before, own = writes(cluster), await spent(observe)
            await asyncio.sleep(REST_SECONDS)
            rest = writes(cluster) - before
            own_rest = (await spent(observe)).writes - own.writes
            memory = resident_mib(operator)
        finally:
            operator.stop()
    return {
        "deployments": deployments,
        "nodes": nodes,
        "all_made_seconds": round(made, 1),
        "edit_p50_seconds": round(took[len(took) // 2], 3),
        "edit_p99_seconds": round(took[min(len(took) - 1, int(len(took) * 0.99))], 3),
        "an_edit_costs": cost,
        "writes_in_a_minute_at_rest": rest,
        "the_operators_of_them_with_its_lease": own_rest,
        "resident_mib": round(memory, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deployments", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=1000)
    options = parser.parse_args()
    network.isolate()
    cluster = Cluster.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            work = measure(
                cluster, pathlib.Path(folder), deployments=options.deployments, nodes=options.nodes
            )
            print(json.dumps(asyncio.run(work), indent=2))
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
