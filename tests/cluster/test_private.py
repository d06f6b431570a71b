"""Clusters that die: the API server alone, and the owner of everything."""

import pathlib
import subprocess
import sys
import time

import aiohttp
import pytest

from cluster import janitor
from cluster.client import ApiError, Client
from cluster.expect import condition
from cluster.fixtures import schedulable
from cluster.follow import wait_for
from cluster.nodes import node
from cluster.running import Cluster, importable
from cluster.workloads import pod

OWNER = """
import sys, time
from cluster.running import Cluster
cluster = Cluster.start()
print(cluster.folder, cluster.environment["SPLITWISE_CLUSTER"], flush=True)
time.sleep(600)
"""


@pytest.mark.slow
async def test_objects_survive_the_api_server(private_cluster: Cluster) -> None:
    plane = private_cluster.control_plane
    assert plane is not None
    async with private_cluster.client() as kube:
        await kube.create(node("n"))
        await wait_for(kube, "nodes", "n", schedulable)
        await kube.apply(pod("before"))
        before = await wait_for(kube, "pods", "before", condition("Ready"))
        plane.kill("kube-apiserver")
        with pytest.raises(aiohttp.ClientError):
            await kube.get("pods", "before")
        plane.start("kube-apiserver")
        after = await kube.get("pods", "before")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        await kube.apply(pod("after"))
        await wait_for(kube, "pods", "after", condition("Ready"))
    private_cluster.check()


@pytest.mark.slow
def test_a_frozen_api_server_thaws(private_cluster: Cluster) -> None:
    plane = private_cluster.control_plane
    assert plane is not None
    plane.program("kube-apiserver").freeze()
    with pytest.raises(TimeoutError):
        plane.get("/version", seconds=0.5)
    plane.program("kube-apiserver").thaw()
    status, _ = plane.get("/version", seconds=30)
    assert status == 200


async def test_a_user_without_rights_is_refused(cluster: Cluster) -> None:
    plane = cluster.control_plane
    if plane is None:
        pytest.skip("an existing cluster's users are not ours")
    kubeconfig = plane.keys.kubeconfig("system:kube-scheduler", plane.url)
    async with Client(kubeconfig) as kube:
        with pytest.raises(ApiError, match="403 Forbidden"):
            await kube.list("secrets")


@pytest.mark.slow
def test_a_killed_owner_leaves_nothing(cluster: Cluster) -> None:
    environment = cluster.environment | importable()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert owner.stdout is not None
    with owner.stdout as output:
        folder, mark = output.readline().split()
    assert len(janitor.marked(mark)) >= 5
    owner.kill()
    owner.wait(10)
    deadline = time.monotonic() + 20
    while (janitor.marked(mark) or pathlib.Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert janitor.marked(mark) == []
    assert not pathlib.Path(folder).exists()
