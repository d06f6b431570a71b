"""Every field of the API does something: it changes what a program or the cluster reads, or the status says
that it does nothing."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from controlplane import conditions, population
from controlplane.api import InvalidDeployment, Percentiles, Pool, Spec, parse
from controlplane.api.fields import Part
from controlplane.children import desired
from controlplane.conditions import Finding, Situation
from controlplane.names import CONFIG
from controlplane.observe import Observed
from controlplane.routers import RouterReport
from controlplane.shortfall import SHORTFALLS
from controlplane.target import Target
from deployments import deployment

ONLY_TOLD = {"slo": "SLOMet", **{each.field: "SpecInForce" for each in SHORTFALLS}}
"""Fields that change nothing but the status, and the condition that says so."""

H100 = {"family": "H100", "count": 1}
HUB, CLAIM = {"id": "org/m"}, {"name": "c"}
IMAGE = {"reference": "r"}


def _source(**source: Any) -> dict[str, Any]:
    return {"model": {"name": "m", "source": source}}


def _pool(**pool: Any) -> dict[str, Any]:
    return {"pools": {"prompt": pool, "token": {}}}


_PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "model.name": (_source(path="/m"), {"model": {"name": "other", "source": {"path": "/m"}}}),
    "model.source.hub.id": (_source(hub=HUB), _source(hub={"id": "org/other"})),
    "model.source.hub.revision": (_source(hub=HUB), _source(hub=HUB | {"revision": "v2"})),
    "model.source.hub.tokenSecret": (_source(hub=HUB), _source(hub=HUB | {"tokenSecret": "s"})),
    "model.source.claim.name": (_source(claim=CLAIM), _source(claim={"name": "d"})),
    "model.source.claim.path": (_source(claim=CLAIM), _source(claim=CLAIM | {"path": "x"})),
    "model.source.image.reference": (_source(image=IMAGE), _source(image={"reference": "s"})),
    "model.source.image.path": (_source(image=IMAGE), _source(image=IMAGE | {"path": "x"})),
    "model.source.image.pullPolicy": (_source(image=IMAGE), _source(image=IMAGE | {"pullPolicy": "Never"})),
    "model.source.path": (_source(path="/m"), _source(path="/other")),
    "model.source.package": (_source(path="/m"), _source(package="p")),
    "engine.name": ({}, {"engine": {"name": "reference"}}),
    "engine.image": ({}, {"engine": {"image": "other"}}),
    "engine.args": ({}, {"engine": {"args": ["--seed=1"]}}),
    "engine.contextTokens": ({}, {"engine": {"contextTokens": 77}}),
    "engine.kvBlockTokens": ({}, {"engine": {"kvBlockTokens": 32}}),
    "design": ({}, {"design": "HA"}),
    "pools.ROLE.replicas": (_pool(), _pool(replicas=3)),
    "pools.ROLE.gpu.family": (_pool(gpu=H100), _pool(gpu=H100 | {"family": "A100"})),
    "pools.ROLE.gpu.count": (
        _pool(gpu=H100, tensorParallel=1),
        _pool(gpu=H100 | {"count": 4}, tensorParallel=1),
    ),
    "pools.ROLE.gpu.products": (_pool(gpu=H100), _pool(gpu=H100 | {"products": ["P"]})),
    "pools.ROLE.powerCap.percent": (_pool(gpu=H100), _pool(gpu=H100, powerCap={"percent": 50})),
    "pools.ROLE.powerCap.watts": (_pool(gpu=H100), _pool(gpu=H100, powerCap={"watts": 300})),
    "pools.ROLE.tensorParallel": (
        {"pools": {"mixed": {"gpu": H100 | {"count": 4}, "tensorParallel": 1}}},
        {"pools": {"mixed": {"gpu": H100 | {"count": 4}, "tensorParallel": 2}}},
    ),
    "pools.ROLE.kvCache.memory": (_pool(), _pool(kvCache={"memory": "77Mi"})),
    "pools.ROLE.podTemplate": (_pool(), _pool(podTemplate={"spec": {"priorityClassName": "p"}})),
    "pools.ROLE.scaling.owner": (_pool(), _pool(scaling={"owner": "external"})),
    "kvTransfer.transport": ({}, {"kvTransfer": {"transport": "tcp"}}),
    "kvTransfer.requireRDMA": ({}, {"kvTransfer": {"requireRDMA": True}}),
    "kvTransfer.layerwiseAboveTokens": ({}, {"kvTransfer": {"layerwiseAboveTokens": 77}}),
    "scheduling.promptBatchTokens": ({}, {"scheduling": {"promptBatchTokens": 77}}),
    "scheduling.sequences": ({}, {"scheduling": {"sequences": 77}}),
    "scheduling.mixedPool.enabled": ({}, {"scheduling": {"mixedPool": {"enabled": False}}}),
    "scheduling.mixedPool.promptQueueTokens": (
        {},
        {"scheduling": {"mixedPool": {"promptQueueTokens": 77}}},
    ),
    "scheduling.mixedPool.tokenQueueTokens": ({}, {"scheduling": {"mixedPool": {"tokenQueueTokens": 77}}}),
    "scheduling.mixedPool.preemptions": ({}, {"scheduling": {"mixedPool": {"preemptions": 7}}}),
    "scheduling.waitForMachines": ({}, {"scheduling": {"waitForMachines": "77s"}}),
    "scheduling.restarts": ({}, {"scheduling": {"restarts": 7}}),
    "degradedMode": ({}, {"degradedMode": "mixed"}),
    "router.replicas": ({}, {"router": {"replicas": 3}}),
    "router.port": ({}, {"router": {"port": 77}}),
    "router.clientDisconnect": ({}, {"router": {"clientDisconnect": "finish"}}),
    "router.service.type": ({}, {"router": {"service": {"type": "NodePort"}}}),
    "router.service.annotations": ({}, {"router": {"service": {"annotations": {"a": "b"}}}}),
    "router.podTemplate": ({}, {"router": {"podTemplate": {"spec": {"priorityClassName": "p"}}}}),
    "slo.reference": ({}, {"slo": {"reference": "r"}}),
    **{
        f"slo.{latency}.{percentile}": ({}, {"slo": {latency: {percentile: "7x"}}})
        for latency in ("ttft", "tbt", "e2e")
        for percentile in Percentiles.model_fields
    },
    "requestTimeout": ({}, {"requestTimeout": "77s"}),
    "drainSeconds": ({}, {"drainSeconds": 77}),
}
"""Two specs that differ in one field."""


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """The paths of all fields that hold a value; a pool's once, for all roles."""
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias or name}"
        kinds = (field.annotation, *get_args(field.annotation))
        parts = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Part)]
        if parts == [Pool]:
            here = f"{path}ROLE"
        yield from leaves(parts[0], f"{here}.") if parts else (here,)


def target(spec: dict[str, Any]) -> Target:
    return Target(parse(deployment(**({"model": {"name": "m", "source": {"path": "/m"}}} | spec))))


def effect(one: Target) -> str:
    """All that is made of a spec, without the hashes that name it; or the sentence that refuses it."""
    try:
        made = desired(one)
    except InvalidDeployment as error:
        return str(error)
    for item in made.routers:
        del item["spec"]["template"]["metadata"]["annotations"][CONFIG]
    text = json.dumps([made.manifests({role: one.size(role) for role in one.pools}), made.held])
    for workload in made.workloads:
        text = text.replace(workload.name, workload.role).replace(workload.template, "TEMPLATE")
    return text.replace(one.revision, "REVISION")


def told(one: Target) -> dict[str, Finding]:
    """What the status says of it, by condition."""
    made = desired(one)
    observed = Observed()
    situation = Situation(
        target=one,
        observed=observed,
        pools=population.count(one, made, observed),
        routers=population.routers(one, observed),
        report=RouterReport(),
        held=made.held,
    )
    return {finding.type: finding for finding in conditions.findings(situation)}


def only_told(path: str) -> str | None:
    """The condition that owns up for a field, if that is all it does."""
    return next((kind for field, kind in ONLY_TOLD.items() if f"{path}.".startswith(f"{field}.")), None)


def test_the_table_holds_every_field_of_the_api() -> None:
    found = list(dict.fromkeys(leaves(Spec)))
    assert sorted(found) == sorted(_PAIRS)
    assert all(any(f"{path}.".startswith(f"{field}.") for path in found) for field in ONLY_TOLD)


@pytest.mark.parametrize("path", _PAIRS)
def test_a_field_does_something_or_the_status_says_that_it_does_not(path: str) -> None:
    before, after = map(target, _PAIRS[path])
    changes = effect(before) != effect(after)
    kind = only_told(path)
    if kind is None:
        assert changes, f"{path} is accepted and changes nothing: render it, or own up in shortfall.py"
        return
    assert not changes, f"{path} does something now: take it out of shortfall.py"
    assert kind not in told(before)
    finding = told(after)[kind]
    assert finding.status != "True"
    assert finding.reason == "NotInThisRelease"


def test_what_is_lacking_degrades_and_leaves_ready_alone() -> None:
    found = told(target({"design": "HH"}))
    assert found["Degraded"].status == "True"
    assert "one GPU" in found["Degraded"].message
    assert "SpecInForce" not in found["Ready"].message
    plain = told(target({"design": "HH", "engine": {"name": "reference"}}))
    assert plain["Degraded"].status == "False"
