"""Pods that run their commands as local processes, each on an address of its own."""

import sys

import aiohttp
import pytest

from cluster import steering
from cluster.client import Client, Object
from cluster.expect import condition, restarts
from cluster.fixtures import Nodes
from cluster.follow import until, wait_for, wait_gone
from cluster.running import Cluster
from cluster.workloads import container, pod, pod_spec, service, workload

pytestmark = pytest.mark.usefixtures("process_pods")

PORT = 8080
SERVE = ["python3", "-u", "-m", "http.server", "--bind", "0.0.0.0", str(PORT)]
READINESS = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
AS_PROCESS = {steering.RUN: "process"}


def server(command: list[str] = SERVE) -> Object:
    ports = [{"name": "http", "containerPort": PORT}]
    return container(command, ports=ports, readinessProbe=READINESS)


def script(text: str) -> list[str]:
    return [sys.executable, "-u", "-c", text]


async def fetch(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def test_a_server_serves_on_its_own_address(kube: Client, nodes: Nodes) -> None:
    await nodes.add(annotations=AS_PROCESS)
    await kube.apply(workload("Deployment", "w", 2, pod_spec(server())), service("w", PORT))
    await wait_for(kube, "deployments.apps", "w", lambda d: d["status"].get("readyReplicas") == 2)
    addresses = {item["status"]["podIP"] for item in await kube.list("pods")}
    assert len(addresses) == 2
    for address in addresses:
        assert "Directory listing" in await fetch(f"http://{address}:{PORT}/")
    [found] = await kube.list("endpointslices.discovery.k8s.io")
    slice_name = found["metadata"]["name"]

    def lists_both(item: Object) -> bool:
        return {e["addresses"][0] for e in item["endpoints"] or []} == addresses

    await wait_for(kube, "endpointslices.discovery.k8s.io", slice_name, lists_both)


async def test_it_is_not_ready_before_its_probe_succeeds(kube: Client, nodes: Nodes) -> None:
    await nodes.add(annotations=AS_PROCESS)
    await kube.apply(pod("p", pod_spec(server(["sleep", "60"]))))
    running = await wait_for(kube, "pods", "p", lambda p: p["status"]["phase"] == "Running")
    assert not condition("Ready")(running)
    await kube.delete("pods", "p")
    await wait_gone(kube, "pods", "p")


async def test_it_is_asked_to_end_and_may_finish(cluster: Cluster, kube: Client, nodes: Nodes) -> None:
    await nodes.add(annotations=AS_PROCESS)
    text = (
        "import signal, sys, time\n"
        "def bye(*_): time.sleep(0.5); print('drained'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\n"
        "print('up'); time.sleep(3600)"
    )
    await kube.apply(pod("p", pod_spec(container(script(text)))))
    await wait_for(kube, "pods", "p", condition("Ready"))
    await printed(cluster, kube, "up")
    await kube.delete("pods", "p")
    await wait_gone(kube, "pods", "p")
    assert cluster.pod_log(kube.namespace, "p", "main") == "up\ndrained\n"


async def test_it_is_killed_when_its_grace_period_is_over(
    cluster: Cluster, kube: Client, nodes: Nodes
) -> None:
    await nodes.add(annotations=AS_PROCESS)
    text = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), os.fork() and 'parent' or 'child'); time.sleep(3600)"
    )
    spec = pod_spec(container(script(text)), terminationGracePeriodSeconds=1)
    await kube.apply(pod("p", spec))
    await wait_for(kube, "pods", "p", condition("Ready"))
    await printed(cluster, kube, "child")
    await kube.delete("pods", "p")
    await wait_gone(kube, "pods", "p")
    pids = [int(line.split()[0]) for line in log_of(cluster, kube).splitlines()]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


async def test_it_restarts_after_a_crash_and_its_log_is_kept(
    cluster: Cluster, kube: Client, nodes: Nodes
) -> None:
    await nodes.add(annotations=AS_PROCESS)
    crash = container(
        script("print('boom'); raise SystemExit(7)"),
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    await kube.apply(pod("p", pod_spec(crash)))

    looping = await wait_for(kube, "pods", "p", restarts(2))
    ended = looping["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert ended["exitCode"] == 7
    assert "boom" in ended["message"]
    assert log_of(cluster, kube).count("boom") >= 2


async def test_it_gets_its_environment_its_files_and_its_rights(
    cluster: Cluster, kube: Client, nodes: Nodes
) -> None:
    await nodes.add(annotations=AS_PROCESS)
    data = {"settings": "host = 0.0.0.0\nkey = /etc/app/settings\n", "name": "from-config"}
    metadata = {"name": "app"}
    await kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    text = (
        "import os, pathlib, sys\n"
        "print(os.environ['NAME'], os.environ['IP'])\n"
        "print(pathlib.Path(sys.argv[1]).read_text())\n"
        "print('token', len(pathlib.Path(sys.argv[2], 'token').read_text()) > 100)\n"
        "print('kubeconfig', pathlib.Path(os.environ['KUBECONFIG']).exists())\n"
        "import time; time.sleep(3600)"
    )
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    name = {"configMapKeyRef": {"name": "app", "key": "name"}}
    one = container(
        [*script(text), "$(FILE)", account],
        env=[
            {"name": "NAME", "valueFrom": name},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "FILE", "value": "/etc/app/settings"},
        ],
        volumeMounts=[{"name": "config", "mountPath": "/etc/app"}],
    )
    spec = pod_spec(one, volumes=[{"name": "config", "configMap": {"name": "app"}}])
    await kube.apply(pod("p", spec))
    ready = await wait_for(kube, "pods", "p", condition("Ready"))
    await printed(cluster, kube, "kubeconfig")
    lines = log_of(cluster, kube).splitlines()
    address = ready["status"]["podIP"]
    assert lines[0] == f"from-config {address}"
    assert lines[1] == f"host = {address}"
    assert lines[2].endswith("/volumes/config/settings")
    assert lines[-2:] == ["token True", "kubeconfig True"]


async def test_a_lost_node_takes_its_processes_along(cluster: Cluster, kube: Client, nodes: Nodes) -> None:
    node = await nodes.add(annotations=AS_PROCESS)
    text = "import os, time; print(os.getpid(), 'up'); time.sleep(3600)"
    await kube.apply(pod("p", pod_spec(container(script(text)))))
    await wait_for(kube, "pods", "p", condition("Ready"))
    pid = int((await printed(cluster, kube, "up")).split()[0])
    await kube.annotate("nodes", node, {steering.NODE_STATE: "unreachable"})
    await wait_for(kube, "pods", "p", condition("Ready", "False"))
    assert alive(pid)
    await kube.annotate("nodes", node, {steering.NODE_STATE: "lost"})
    await until(lambda: not alive(pid), seconds=10)


def log_of(cluster: Cluster, kube: Client) -> str:
    return cluster.pod_log(kube.namespace, "p", "main")


def alive(pid: int) -> bool:
    """True unless the process is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def printed(cluster: Cluster, kube: Client, word: str) -> str:
    """The log of pod p, once `word` is in it."""
    await until(lambda: word in log_of(cluster, kube))
    return log_of(cluster, kube)
