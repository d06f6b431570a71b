"""A deployment's life on a real API server: made, scaled, changed, put right, removed."""

from collections.abc import Callable
from typing import Any

import pytest

from cluster import steering
from cluster.client import Client, Object
from cluster.fixtures import Nodes
from cluster.follow import wait_for, wait_gone
from operating import SETS, SWD, WAIT, Operator, is_so, ready, tiny, until_quiet, until_true


def sized(prompt: int, token: int, **more: Any) -> Object:
    return {"prompt": {"replicas": prompt} | more, "token": {"replicas": token} | more}


async def set_spec(api: Client, **spec: Any) -> Object:
    return await api.patch(SWD, "tiny", {"spec": spec})


async def until_ready(api: Client) -> Object:
    return await wait_for(api, SWD, "tiny", ready, seconds=WAIT)


async def pools_sets(api: Client) -> dict[str, Object]:
    """The StatefulSets with machines, by pool; an error if a pool has two."""
    found: dict[str, Object] = {}
    for item in await api.list(SETS):
        if item["spec"]["replicas"] == 0:
            continue
        pool = item["metadata"]["labels"]["splitwise.dev/pool"]
        assert pool not in found, "two revisions are left"
        found[pool] = item
    return found


async def test_apply_becomes_ready(api: Client, nodes: Nodes, operator: Operator) -> None:
    node = await nodes.add()
    await api.apply(tiny(api))
    status = (await until_ready(api))["status"]
    nothing = dict.fromkeys(("mixed", "power", "transport"), "-")
    assert status["summary"] == {"prompt": "1/1", "token": "1/1", **nothing}
    assert status["pools"]["prompt"]["nodes"] == [node]
    assert status["endpoint"] == f"http://tiny-router.{api.namespace}.svc:8000/v1"
    labels = (await api.get("nodes", node))["metadata"]["labels"]
    assert labels[f"tiny.{api.namespace}.splitwise.dev/prompt"] == "true"


async def test_an_edit_scales(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(tiny(api))
    await until_ready(api)
    before = await pools_sets(api)
    await set_spec(api, pools=sized(3, 2))
    status = (await until_ready(api))["status"]
    assert (status["summary"]["prompt"], status["summary"]["token"]) == ("3/3", "2/2")
    after = await pools_sets(api)
    assert {pool: item["metadata"]["uid"] for pool, item in after.items()} == {
        pool: item["metadata"]["uid"] for pool, item in before.items()
    }
    await set_spec(api, pools=sized(1, 1))
    assert (await until_ready(api))["status"]["summary"]["prompt"] == "1/1"


@pytest.mark.fault("STATUS-1")
async def test_an_image_bump_is_ready_only_when_all_is_new(
    api: Client, nodes: Nodes, operator: Operator
) -> None:
    await nodes.add(annotations={steering.READY_AFTER: "1"})
    await api.apply(tiny(api, pools=sized(2, 1)))
    await until_ready(api)
    await set_spec(api, engine={"image": "machine:new"})
    updating = await wait_for(api, SWD, "tiny", is_so("Ready", "False", "Updating"), seconds=WAIT)
    assert is_so("Progressing", "True")(updating)
    assert is_so("Available", "True")(updating)
    await until_ready(api)
    for item in (await pools_sets(api)).values():
        assert item["spec"]["template"]["spec"]["containers"][0]["image"] == "machine:new"
    pods = await api.list("pods", selector="splitwise.dev/pool in (prompt,token)")
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"machine:new"}


@pytest.mark.fault("DRAIN-4")
async def test_a_revert_in_mid_rollout_never_goes_under_the_floor(
    api: Client, nodes: Nodes, operator: Operator
) -> None:
    await nodes.add(annotations={steering.READY_AFTER: "1"})
    await api.apply(tiny(api, pools=sized(2, 1)))
    first = (await until_ready(api))["status"]["revision"]
    for image in ("machine:b", "machine:c", ""):
        await set_spec(api, engine={"image": image})
        item = await wait_for(api, SWD, "tiny", is_so("Ready", "False"), seconds=WAIT)
        assert is_so("Available", "True")(item)
    seen: list[Object] = []

    def settled(item: Object) -> bool:
        seen.append(item)
        return ready(item)

    last = await wait_for(api, SWD, "tiny", settled, seconds=WAIT)
    assert last["status"]["revision"] == first
    for item in seen:
        assert is_so("Available", "True")(item) or item["status"]["observedGeneration"] < 4
        pools = item["status"]["pools"]
        assert pools["prompt"]["readyReplicas"] >= 2
        assert pools["token"]["readyReplicas"] >= 1


def another(uid: str) -> Callable[[Object], bool]:
    return lambda item: bool(item["metadata"]["uid"] != uid)


CHILDREN = (
    ("services", "tiny-router"),
    ("services", "tiny-prompt"),
    ("configmaps", "tiny-router"),
    ("deployments.apps", "tiny-router"),
    ("serviceaccounts", "tiny-machine"),
    ("roles.rbac.authorization.k8s.io", "tiny-router"),
    ("rolebindings.rbac.authorization.k8s.io", "tiny-router"),
    ("networkpolicies.networking.k8s.io", "tiny-machine"),
)


async def test_children_deleted_by_hand_come_back(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(tiny(api))
    await until_ready(api)
    [workload] = await api.list(SETS, selector="splitwise.dev/pool=token")
    children = (*CHILDREN, (SETS, workload["metadata"]["name"]), ("configmaps", workload["metadata"]["name"]))
    old = {child: (await api.get(*child))["metadata"]["uid"] for child in children}
    for resource, name in children:
        await api.delete(resource, name)
    for (resource, name), uid in old.items():
        await wait_for(api, resource, name, another(uid))
    await until_ready(api)


async def test_a_child_edited_by_hand_is_put_right(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(tiny(api))
    await until_ready(api)
    await api.patch("services", "tiny-router", {"spec": {"selector": {"splitwise.dev/pool": "token"}}})

    def right(item: Object) -> bool:
        return bool(item["spec"]["selector"]["splitwise.dev/pool"] == "router")

    await wait_for(api, "services", "tiny-router", right, seconds=WAIT)
    [workload] = await api.list(SETS, selector="splitwise.dev/pool=token")
    name = workload["metadata"]["name"]
    await api.patch(SETS, name, {"spec": {"replicas": 5}})
    await wait_for(api, SETS, name, lambda item: item["spec"]["replicas"] == 1, seconds=WAIT)
    await until_ready(api)


async def test_a_pool_taken_out_goes_away(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(tiny(api, pools=sized(1, 1) | {"mixed": {"replicas": 2}}))
    await until_ready(api)
    await set_spec(api, pools={"mixed": None})
    await wait_gone(api, "services", "tiny-mixed", seconds=WAIT)
    item = await until_ready(api)
    assert "mixed" not in item["status"]["pools"]
    assert {pod["metadata"]["labels"]["splitwise.dev/pool"] for pod in await api.list("pods")} == {
        "prompt",
        "token",
        "router",
    }


async def test_nothing_is_written_at_rest(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add()
    await api.apply(tiny(api))
    await until_ready(api)
    await until_quiet(api, SWD, "tiny")
    before = len(operator.lines())
    await api.annotate(SWD, "tiny", {"somebody": "looked"})  # wakes it, changes nothing
    await until_quiet(api, SWD, "tiny")
    changes = [line for line in operator.lines()[before:] if line.get("event") == "pass"]
    assert changes == [], changes


@pytest.mark.fault("STATUS-3")
async def test_foreground_deletion_makes_nothing_new(api: Client, nodes: Nodes, operator: Operator) -> None:
    node = await nodes.add(annotations={steering.STOP_AFTER: "2"})
    await api.apply(tiny(api))
    await until_ready(api)
    await until_quiet(api, SWD, "tiny")
    known = {item["metadata"]["uid"] for item in await everything(api)}
    options = {"propagationPolicy": "Foreground"}
    await api.request("DELETE", await api.path(SWD, "tiny"), options)
    made: set[str] = set()

    async def gone() -> bool:
        left = await everything(api)
        made.update(item["metadata"]["uid"] for item in left)
        return not left

    await until_true(gone, "nothing of the deployment is left")
    assert made <= known
    assert not await api.list(SWD)
    prefix = f"tiny.{api.namespace}.splitwise.dev/"

    async def unlabelled() -> bool:
        labels = (await api.get("nodes", node))["metadata"]["labels"]
        return not [label for label in labels if label.startswith(prefix)]

    await until_true(unlabelled, "the node has no label of the deployment")


async def everything(api: Client) -> list[Object]:
    """Whatever carries the deployment's label, and is not made by some controller of Kubernetes."""
    kinds = ["pods", "services", "configmaps", "secrets", "serviceaccounts", SETS, "deployments.apps"]
    kinds += ["roles.rbac.authorization.k8s.io", "networkpolicies.networking.k8s.io"]
    selector = "app.kubernetes.io/managed-by=splitwise-operator"
    return [item for kind in kinds for item in await api.list(kind, selector=selector)]


async def test_a_restarted_operator_goes_on(api: Client, nodes: Nodes, operator: Operator) -> None:
    await nodes.add(annotations={steering.READY_AFTER: "1"})
    await api.apply(tiny(api, pools=sized(2, 1)))
    await until_ready(api)
    await set_spec(api, engine={"image": "machine:new"})
    await wait_for(api, SWD, "tiny", is_so("Ready", "False", "Updating"), seconds=WAIT)
    operator.process.kill()
    await set_spec(api, pools=sized(3, 2))
    operator.process.start()
    item = await wait_for(api, SWD, "tiny", ready, seconds=2 * WAIT)
    assert item["status"]["summary"]["prompt"] == "3/3"


async def test_a_broken_template_is_said_and_harms_nobody(
    api: Client, nodes: Nodes, operator: Operator
) -> None:
    await nodes.add()
    await api.apply(tiny(api))
    await until_ready(api)
    wrong = {"spec": {"containers": [{"name": "machine", "ports": [{"containerPort": 99999}]}]}}
    await set_spec(api, pools={"token": {"podTemplate": wrong}})
    item = await wait_for(api, SWD, "tiny", is_so("Ready", "False", "ApplyFailed"), seconds=WAIT)
    assert "99999" in str(item["status"]["conditions"])
    assert is_so("Available", "True")(item)
    await set_spec(api, pools={"token": {"podTemplate": None}})
    await until_ready(api)
