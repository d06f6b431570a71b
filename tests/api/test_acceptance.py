"""A user's whole way on a real API server, with pretend nodes that run the real programs: install, apply,
stream, scale, update, lose one thing after another, delete, uninstall, and find everything as it was."""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import yaml

import tiny_llama
from cluster import janitor, network, steering
from cluster.binaries import REPOSITORY
from cluster.client import TRANSIENT, Client, Object
from cluster.expect import condition
from cluster.fixtures import Nodes, give_up
from cluster.follow import WaitFailed, wait_for
from cluster.nodes import A100, H100
from cluster.running import Cluster
from operating import CHART, SWD, is_so, ready, until_true
from streams import Answer, router, stream, streaming

LONG = 120.0
RELEASE = ("-n", "splitwise-system")
EXAMPLE = REPOSITORY / "deploy" / "examples" / "ha.yaml"
NAME = "llama-ha"
UNLISTED = {"events", "events.events.k8s.io", "componentstatuses"}


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster of our own with nodes for routers, two H100 and three A100 nodes; `kube` is in "serving"."""

    cluster: Cluster
    kube: Client
    model: Object

    async def helm(self, verb: str, *flags: str) -> None:
        await self.cluster.helm(verb, "splitwise", *flags, *RELEASE, "--timeout=90s")

    async def apply(self, item: Object) -> None:
        """What a user applies, with the tiny model in place of the big one."""
        item["spec"] |= {"model": self.model, "engine": {"name": "reference"}}
        await self.cluster.kubectl("apply", "-n", "serving", "-f", "-", text=yaml.safe_dump(item))

    async def edit(self, **spec: Object) -> None:
        await self.kube.patch(SWD, NAME, {"spec": spec})

    async def until_ready(self, name: str = NAME, **sizes: str) -> Object:
        """Ready at the latest generation, with pools of these sizes: token="2/2"."""

        def holds(item: Object) -> bool:
            return ready(item) and sizes.items() <= item["status"]["summary"].items()

        return await wait_for(self.kube, SWD, name, holds, seconds=LONG)

    async def pods(self, pool: str) -> list[Object]:
        chosen = f"splitwise.dev/deployment={NAME},splitwise.dev/pool={pool}"
        return await self.kube.list("pods", selector=chosen)

    async def objects(self) -> set[str]:
        """Everything in the cluster but what tells of the past and leases of nodes, as "kind/name"."""
        kinds = (await self.cluster.kubectl("api-resources", "--verbs=list", "-o", "name")).split()
        listed = ",".join(sorted(set(kinds) - UNLISTED))
        found = (await self.cluster.kubectl("get", listed, "-A", "-o", "name")).split()
        return {name for name in found if not name.startswith("lease.coordination.k8s.io/node-")}

    async def labels(self) -> set[str]:
        """Labels of our own on nodes."""
        found = [label for node in await self.kube.list("nodes") for label in node["metadata"]["labels"]]
        return {label for label in found if ".splitwise.dev/" in label} - {steering.NODE_LABEL}

    def processes(self) -> list[str]:
        """The command lines of all that runs for this cluster."""
        pids = janitor.marked(self.cluster.environment[janitor.VARIABLE])
        found = []
        for pid in pids:
            with contextlib.suppress(OSError):
                found.append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        return sorted(found)


@pytest.fixture
async def stage(private_cluster: Cluster, tmp_path: pathlib.Path) -> AsyncIterator[Stage]:
    if reason := network.isolate():
        give_up(reason)
    async with private_cluster.client("serving") as kube:
        for name in ("serving", "splitwise-system"):
            await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        nodes = Nodes(kube)
        for gpu in (None, H100, H100, A100, A100, A100):
            await nodes.add(gpu=gpu, annotations={steering.RUN: "process"})
        source = {"path": str(tiny_llama.make(tmp_path / "model"))}
        yield Stage(private_cluster, kube, {"name": "tiny", "source": source})


@pytest.mark.slow
@pytest.mark.fault("GPU-2", "DRAIN-1", "DRAIN-2", "DRAIN-3", "STATUS-1", "STATUS-5", "INSTALL-3")
async def test_from_install_to_nothing_left(stage: Stage) -> None:
    objects, processes = await stage.objects(), stage.processes()
    flags = ("--set=settings.leaseSeconds=10", "--set=crds.keep=false", "--wait")
    await stage.helm("install", str(CHART), *flags)
    expected = await unsplit(stage)

    await stage.apply(yaml.safe_load(EXAMPLE.read_text()))
    pools = (await stage.until_ready(prompt="1/1", token="1/1"))["status"]["pools"]
    assert (pools["prompt"]["gpuProduct"], pools["token"]["gpuProduct"]) == (H100.product, A100.product)
    url = await router(stage.kube, NAME)
    assert await stream(url) == expected
    await wait_for(stage.kube, SWD, NAME, is_all_split, seconds=LONG)
    await stage.helm("upgrade", str(CHART), *flags, f"--set=test.deployment=serving/{NAME}")
    await stage.helm("test")

    async with streaming(url, expected):
        await scale(stage)
        await roll(stage)
        await lose_the_operator(stage)
        await lose_a_token_machine(stage)
    await expect_a_clean_log(stage)
    await lose_the_api_server(stage, url, expected)
    assert await stream(url) == expected

    patiently = ("--cascade=foreground", "--timeout=90s")
    await stage.cluster.kubectl("delete", "swd", NAME, "-n", "serving", *patiently)
    await stage.helm("uninstall", "--wait")
    await expect_nothing_left(stage, objects, processes)


async def unsplit(stage: Stage) -> Answer:
    """What a machine that does both phases answers."""
    head = {"apiVersion": "splitwise.dev/v1alpha1", "kind": "SplitwiseDeployment"}
    await stage.apply(head | {"metadata": {"name": "whole"}, "spec": {"pools": {"mixed": {}}}})
    await stage.until_ready("whole")
    answer = await stream(await router(stage.kube, "whole"))
    assert answer[1] == "length"
    await stage.kube.delete(SWD, "whole")
    return answer


def is_all_split(item: Object) -> bool:
    """The status tells that every request was split, and over which transport."""
    status = item["status"]
    return status["router"].get("splitShare") == "100%" and status["summary"]["transport"] in ("shm", "tcp")


async def scale(stage: Stage) -> None:
    for count in (2, 1):
        await stage.edit(pools={"prompt": {"replicas": count}, "token": {"replicas": count}})
        await stage.until_ready(prompt=f"{count}/{count}", token=f"{count}/{count}")

        async def there(count: int = count) -> bool:
            return [len(await stage.pods(pool)) for pool in ("prompt", "token")] == [count, count]

        await until_true(there, f"{count} machines in each pool", seconds=LONG)


async def roll(stage: Stage) -> None:
    await stage.edit(engine={"image": "machine:new"})
    updating = await wait_for(stage.kube, SWD, NAME, is_so("Ready", "False", "Updating"), seconds=LONG)
    assert is_so("Available", "True")(updating)
    await stage.until_ready(prompt="1/1", token="1/1")
    pods = [pod for pool in ("prompt", "token") for pod in await stage.pods(pool)]
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    assert [pod["spec"]["containers"][0]["image"] for pod in staying] == ["machine:new"] * 2


async def lose_the_operator(stage: Stage) -> None:
    async with stage.cluster.client("splitwise-system") as kube:
        [pod] = await kube.list("pods", selector="app.kubernetes.io/name=splitwise-operator")
        await kube.delete("pods", pod["metadata"]["name"], options={"gracePeriodSeconds": 0})
    await stage.edit(pools={"token": {"replicas": 2}})
    await stage.until_ready(token="2/2")


async def lose_a_token_machine(stage: Stage) -> None:
    victim, *_ = await stage.pods("token")
    name, uid = victim["metadata"]["name"], victim["metadata"]["uid"]
    await stage.kube.delete("pods", name, options={"gracePeriodSeconds": 0})

    def successor(pod: Object) -> bool:
        return pod["metadata"]["uid"] != uid and condition("Ready")(pod)

    await wait_for(stage.kube, "pods", name, successor, seconds=LONG)
    await stage.until_ready(token="2/2")


async def lose_the_api_server(stage: Stage, url: str, expected: Answer) -> None:
    plane = stage.cluster.control_plane
    assert plane is not None
    plane.kill("kube-apiserver")
    assert await stream(url) == expected  # the data plane does not need it
    await asyncio.to_thread(plane.start, "kube-apiserver")
    with contextlib.suppress(*TRANSIENT):
        await stage.kube.get(SWD, NAME)
    await stage.edit(pools={"token": {"replicas": 1}})
    await stage.until_ready(token="1/1")


async def expect_a_clean_log(stage: Stage) -> None:
    """No call was forbidden and nothing broke, in any pod of the operator. Look before the API server is
    lost: a new one knows no roles for a moment."""
    logs = (stage.cluster.folder / "pods").glob("splitwise-system_*/*.log")
    text = "".join(log.read_text() for log in logs)
    assert text
    assert "forbidden" not in text.lower()
    assert "Traceback" not in text


async def expect_nothing_left(stage: Stage, objects: set[str], processes: list[str]) -> None:
    async def nothing() -> bool:
        same = await stage.objects() <= objects and stage.processes() == processes
        return same and not await stage.labels()

    with contextlib.suppress(WaitFailed):
        await until_true(nothing, "nothing is left")
    assert await stage.objects() - objects == set()
    assert stage.processes() == processes
    assert await stage.labels() == set()
