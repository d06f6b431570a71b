"""Passes over a deployment on a fake API server: what they write, and what they say."""

from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.errors import ApiError
from controlplane.gpus import Node
from controlplane.names import Manifest
from controlplane.reconcile import World, reconcile
from controlplane.routers import RouterReport
from controlplane.settings import OperatorSettings
from deployments import deployment
from fakekube import FakeKube, come_up

KEY = ("default", "tiny")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


def document(**spec: Any) -> Manifest:
    spec.setdefault("model", {"name": "tiny", "source": {"path": "/models/tiny"}})
    return deployment(**({"engine": {"name": "reference"}} | spec))


def world(kube: FakeKube, *nodes: Node, **more: Any) -> World:
    return World(kube, nodes=lambda: nodes, now=lambda: NOW, random_secret=lambda: "s" * 40, **more)


def condition(kube: FakeKube, kind: str) -> dict[str, Any]:
    status = kube.objects["SplitwiseDeployment", *KEY]["status"]
    return next(each for each in status["conditions"] if each["type"] == kind)


async def ready(kube: FakeKube, with_world: World | None = None) -> World:
    """A deployment that has come to rest."""
    chosen = with_world or world(kube)
    for _ in range(3):
        await reconcile(KEY, chosen)
        come_up(kube)
    await reconcile(KEY, chosen)
    kube.written()
    return chosen


async def test_the_first_pass_makes_everything_and_says_why_it_is_not_ready() -> None:
    kube = FakeKube(document())
    await reconcile(KEY, world(kube))
    kinds = [kind for verb, kind, _ in kube.calls if verb in ("apply", "create")]
    assert kinds[0] == "Secret"
    assert {"StatefulSet", "Deployment", "ConfigMap", "Service", "NetworkPolicy"} <= set(kinds)
    assert kinds.index("ConfigMap") < kinds.index("StatefulSet") < kinds.index("Deployment")
    assert condition(kube, "Ready")["reason"] == "Updating"
    assert condition(kube, "Ready")["lastTransitionTime"] == "2026-01-02T03:04:05Z"


async def test_at_rest_nothing_is_written() -> None:
    kube = FakeKube(document())
    same = await ready(kube)
    assert condition(kube, "Ready")["status"] == "True"
    await reconcile(KEY, same)
    assert kube.written() == []


async def test_children_belong_to_the_object() -> None:
    kube = FakeKube(document())
    await reconcile(KEY, world(kube))
    uid = kube.objects["SplitwiseDeployment", *KEY]["metadata"]["uid"]
    for (kind, _, name), item in kube.objects.items():
        if kind not in ("SplitwiseDeployment", "Event"):
            [owner] = item["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (uid, True), (kind, name)


@pytest.mark.fault("STATUS-3")
async def test_nothing_is_done_to_an_object_that_goes() -> None:
    going = document()
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    kube = FakeKube(going)
    assert await reconcile(KEY, world(kube)) is None
    assert kube.calls == []


async def test_labels_leave_the_nodes_of_an_object_that_is_gone() -> None:
    mine = {"tiny.default.splitwise.dev/prompt": "true", "tiny.other.splitwise.dev/prompt": "true"}
    node = Node("n", mine, gpus=0)
    kube = FakeKube({"kind": "Node", "metadata": {"name": "n", "labels": dict(mine)}})
    await reconcile(KEY, world(kube, node))
    assert kube.objects["Node", "", "n"]["metadata"]["labels"] == {"tiny.other.splitwise.dev/prompt": "true"}


async def test_a_foreign_object_of_our_label_is_left_alone() -> None:
    kube = FakeKube(document())
    same = await ready(kube)
    foreign = {"labels": {"splitwise.dev/deployment": "tiny"}, "name": "theirs", "namespace": "default"}
    kube.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": foreign})
    await reconcile(KEY, same)
    assert ("ConfigMap", "default", "theirs") in kube.objects


async def test_the_secret_is_made_once() -> None:
    kube = FakeKube(document())
    same = await ready(kube)
    before = kube.objects["Secret", "default", "tiny-link"]
    await reconcile(KEY, same)
    assert kube.objects["Secret", "default", "tiny-link"] is before


async def test_one_refused_child_does_not_stop_the_others() -> None:
    kube = FakeKube(document())
    kube.fail["NetworkPolicy"] = ApiError(422, "NetworkPolicy is wrong")
    with pytest.raises(ApiError, match="NetworkPolicy is wrong"):
        await reconcile(KEY, world(kube))
    assert ("Deployment", "default", "tiny-router") in kube.objects
    assert condition(kube, "Ready")["reason"] == "ApplyFailed"
    await ready(kube)
    assert condition(kube, "Ready")["status"] == "True"


@pytest.mark.fault("STATUS-2")
async def test_the_size_of_an_external_pool_is_seeded_once_and_read_from_then_on() -> None:
    external = {"replicas": 2, "scaling": {"owner": "external"}}
    kube = FakeKube(document(pools={"prompt": {}, "token": external}))
    same = await ready(kube)
    scaler = kube.objects["SplitwisePool", "default", "tiny-token"]
    assert scaler["spec"]["replicas"] == 2
    assert scaler["status"]["selector"] == "splitwise.dev/deployment=tiny,splitwise.dev/pool=token"
    scaler["spec"]["replicas"] = 5
    await reconcile(KEY, same)
    [workload] = [key for key in kube.objects if key[0] == "StatefulSet" and "token" in key[2]]
    assert kube.objects[workload]["spec"]["replicas"] == 5
    assert ("patch", "SplitwisePool", "tiny-token") not in kube.written()
    assert scaler["spec"]["replicas"] == 5


async def test_an_unfit_spec_is_said_and_harms_nobody() -> None:
    kube = FakeKube(document())
    same = await ready(kube)
    item = kube.objects["SplitwiseDeployment", *KEY]
    item["spec"]["model"] = {"name": "tiny", "source": {"package": "p"}}
    item["metadata"]["generation"] = 2
    await reconcile(KEY, same)
    assert condition(kube, "Ready")["reason"] == "InvalidSpec"
    assert item["status"]["observedGeneration"] == 2
    writes = [call for call in kube.written() if call[1] != "Event"]
    assert writes == [("apply", "SplitwiseDeployment/status", "tiny")]


async def test_events_tell_of_flips_only() -> None:
    kube = FakeKube(document())
    same = await ready(kube)
    for _ in range(3):
        await reconcile(KEY, same)
    told = [item["message"] for (kind, _, _), item in kube.objects.items() if kind == "Event"]
    assert sorted(told) == [
        "Available is True: requests can be served",
        "Ready is True: everything is as specified",
    ]


class Says:
    """Routers that answer what a test wants."""

    def __init__(self, report: RouterReport) -> None:
        self.report = report

    async def ask(self, addresses: Any) -> RouterReport:
        return self.report


async def test_ready_needs_routers_that_know_the_machines() -> None:
    kube = FakeKube(document())
    routers = Says(RouterReport(machines={"prompt": 1, "token": 0}))
    same = await ready(kube, world(kube, routers=routers))
    assert condition(kube, "Ready")["reason"] == "MachinesUnknownToRouter"
    assert await reconcile(KEY, same) == 2.0
    routers.report = RouterReport(machines={"prompt": 1, "token": 1}, split=3, whole=1, kv_bytes={"tcp": 9})
    assert await reconcile(KEY, same) == 30.0
    status = kube.objects["SplitwiseDeployment", *KEY]["status"]
    assert condition(kube, "Ready")["status"] == "True"
    assert status["router"]["splitShare"] == "75%"
    assert status["summary"]["transport"] == "tcp"


async def test_a_silent_router_is_not_ready() -> None:
    kube = FakeKube(document())
    await ready(kube, world(kube, routers=Says(RouterReport(silent="the router does not answer"))))
    assert condition(kube, "RouterReady")["status"] == "Unknown"
    assert condition(kube, "Ready")["message"] == "the router does not answer"


async def test_a_pool_that_leaves_the_spec_leaves_the_cluster() -> None:
    kube = FakeKube(document(pools={"prompt": {}, "token": {}, "mixed": {}}))
    same = await ready(kube)
    del kube.objects["SplitwiseDeployment", *KEY]["spec"]["pools"]["mixed"]
    await ready(kube, same)
    assert not [key for key in kube.objects if "mixed" in key[2]]


async def test_monitors_only_where_they_are_known() -> None:
    kube = FakeKube(document())
    await ready(kube, world(kube, monitors=True))
    assert ("ServiceMonitor", "default", "tiny") in kube.objects
    other = FakeKube(document())
    await ready(other, world(other, settings=OperatorSettings()))
    assert ("ServiceMonitor", "default", "tiny") not in other.objects


async def test_the_version_that_a_written_status_makes_is_remembered() -> None:
    kube = FakeKube(document())
    same = world(kube)
    await ready(kube, same)
    kube.objects["SplitwiseDeployment", *KEY]["metadata"]["resourceVersion"] = "42"
    kube.objects["SplitwiseDeployment", *KEY]["status"]["design"] = "AA"
    await reconcile(KEY, same)
    assert same.told == {KEY: "42"}
