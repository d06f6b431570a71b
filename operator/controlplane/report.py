"""A situation as the status that people read."""

from datetime import datetime

from controlplane import names
from controlplane.api.pools import PowerCap
from controlplane.api.scaler import ScalerStatus
from controlplane.api.status import (
    NODES_SHOWN,
    PoolStatus,
    PoolStatuses,
    PowerCapStatus,
    RouterStatus,
    Status,
    Summary,
)
from controlplane.children.router import endpoint
from controlplane.conditions import Finding, Situation, conditions
from controlplane.population import PoolCount
from controlplane.target import Target


def status(
    situation: Situation, found: list[Finding], before: Status, *, generation: int, now: datetime
) -> Status:
    """The status to be written."""
    target = situation.target
    pools = {pool.role: _pool(situation, pool) for pool in situation.pools}
    report = situation.report
    return Status(
        observed_generation=generation,
        conditions=conditions(found, before.conditions, generation=generation, now=now),
        design=design(target),
        endpoint=endpoint(target),
        revision=target.revision,
        summary=_summary(situation),
        pools=PoolStatuses(**pools),
        router=RouterStatus(
            replicas=situation.routers.wanted,
            ready_replicas=situation.routers.ready,
            machines=sum(report.machines.values()) if report.machines else None,
            split_share=report.split_share,
        ),
    )


def refused(before: Status, found: list[Finding], *, generation: int, now: datetime) -> Status:
    """The status of an object that cannot be served: only its conditions change."""
    judged = conditions(found, before.conditions, generation=generation, now=now)
    return before.model_copy(update={"observed_generation": generation, "conditions": judged})


def design(target: Target) -> str:
    """The paper's name for the pools' GPUs, written or recognised; Custom for what it has no name for."""
    if target.deployment.spec.design:
        return target.deployment.spec.design
    families = []
    for role in ("prompt", "token"):
        pool = target.pools.get(role)
        families.append((pool.gpu.family or "") if pool and pool.gpu else "")
    name = {("A100", "A100"): "AA", ("H100", "H100"): "HH", ("H100", "A100"): "HA"}.get(
        (families[0].upper(), families[1].upper()), "Custom"
    )
    token = target.pools.get("token")
    return "HHcap" if name == "HH" and token and token.power_cap else name


def _pool(situation: Situation, pool: PoolCount) -> PoolStatus:
    target = situation.target
    on = sorted({pod.node for pod in pool.pods if pod.node})
    there = frozenset(on)
    products = {node.product for node in situation.observed.nodes if node.name in there}
    gpu = target.pools[pool.role].gpu
    cap = target.pools[pool.role].power_cap
    return PoolStatus(
        desired=pool.wanted,
        replicas=pool.replicas,
        ready_replicas=pool.ready,
        updated_replicas=pool.updated,
        selector=names.text(names.selector(target.name, pool.role)),
        nodes=tuple(on[:NODES_SHOWN]),
        gpu_product=", ".join(sorted(products - {""})) or None if gpu else None,
        transport=situation.report.transport,
        power_cap=_cap(cap, nodes_there=len(on)) if cap else None,
    )


def _cap(cap: PowerCap, *, nodes_there: int) -> PowerCapStatus:
    """What is asked for. Without an agent nothing is in force anywhere, and nothing else is known."""
    return PowerCapStatus(
        requested_percent=cap.percent, requested_watts=cap.watts, nodes_applied=0, nodes_failed=nodes_there
    )


def _summary(situation: Situation) -> Summary:
    shown = {pool.role: f"{pool.ready}/{pool.wanted}" for pool in situation.pools}
    token = situation.target.pools.get("token")
    cap = token.power_cap if token else None
    asked = "" if cap is None else f"{cap.percent}%" if cap.percent is not None else f"{cap.watts}W"
    return Summary(
        prompt=shown.get("prompt", "-"),
        token=shown.get("token", "-"),
        mixed=shown.get("mixed", "-"),
        power=f"{asked} (not applied)" if asked else "-",
        transport=situation.report.transport or "-",
    )


def scaler_status(target: Target, pool: PoolCount) -> ScalerStatus:
    """The status of a pool's scaler object, from which an autoscaler reads."""
    selector = names.text(names.selector(target.name, pool.role))
    return ScalerStatus(replicas=pool.replicas, ready_replicas=pool.ready, selector=selector)
