"""What holds of a deployment and what does not, one function per condition.

Each returns a Finding, or None where the condition does not apply; it is then removed, not left Unknown.
`findings` lists them as they are shown; Ready, the summary, comes first and is judged last.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from controlplane import nodes
from controlplane.api.status import Condition
from controlplane.gpus import PROFILED
from controlplane.observe import Observed
from controlplane.population import PoolCount, RouterCount
from controlplane.routers import RouterReport
from controlplane.shortfall import shortfalls
from controlplane.target import Target
from runtime.config import Role

Truth = Literal["True", "False", "Unknown"]


class Reason(StrEnum):
    """Every reason a condition may have; stable, for programs."""

    AS_SPECIFIED = "AsSpecified"
    INVALID_SPEC = "InvalidSpec"
    APPLY_FAILED = "ApplyFailed"
    NO_MATCHING_NODES = "NoMatchingNodes"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    NODES_MATCHED = "NodesMatched"
    PODS_NOT_READY = "PodsNotReady"
    UPDATING = "Updating"
    SCALED_TO_ZERO = "ScaledToZero"
    ROUTER_NOT_READY = "RouterNotReady"
    MACHINES_UNKNOWN = "MachinesUnknownToRouter"
    RDMA_UNAVAILABLE = "RDMAUnavailable"
    TRANSPORT_IN_USE = "TransportInUse"
    AGENT_NOT_INSTALLED = "AgentNotInstalled"
    AUTOSCALER_FAILING = "AutoscalerFailing"
    NO_AUTOSCALER = "NoAutoscaler"
    SCALED_EXTERNALLY = "ScaledExternally"
    PAIR_USABLE = "PairUsable"
    NO_USABLE_PAIR = "NoUsablePair"
    NOTHING_LOST = "NothingLost"
    NOT_IN_THIS_RELEASE = "NotInThisRelease"


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement, without the time at which it began to hold."""

    type: str
    status: Truth
    reason: Reason
    message: str

    @property
    def holds(self) -> bool:
        return self.status == "True"


@dataclass(frozen=True, slots=True)
class Situation:
    """All that is judged. `refused`: what the API server said to our writes."""

    target: Target
    observed: Observed
    pools: Sequence[PoolCount]
    routers: RouterCount
    report: RouterReport
    usable: Mapping[Role, int] = field(default_factory=dict)
    held: str | None = None
    refused: Sequence[str] = ()


def findings(situation: Situation) -> list[Finding]:
    """Every condition that applies, Ready first."""
    found = [
        _nodes_matched(situation),
        *(_pool(situation, pool) for pool in situation.pools),
        *(check(situation) for check in _CHECKS),
    ]
    parts = [finding for finding in found if finding is not None]
    return [_ready(situation, parts), *parts]


def invalid(problem: str) -> list[Finding]:
    """The conditions of an object that cannot be served."""
    return [Finding("Ready", "False", Reason.INVALID_SPEC, problem)]


def _said(kind: str, holds: bool, reason: Reason, message: str) -> Finding:
    return Finding(kind, "True" if holds else "False", reason, message)


# ---- one function per condition


def _nodes_matched(situation: Situation) -> Finding | None:
    target = situation.target
    if not any(pool.gpu for pool in target.pools.values()):
        return None
    for pool in situation.pools:
        gpu = target.pools[pool.role].gpu
        if gpu and pool.wanted and not any(nodes.fits(node, gpu) for node in situation.observed.nodes):
            wanted = f"{gpu.count} {gpu.family or ' or '.join(gpu.products)}"
            text = f"{pool.role}: no node has {wanted}; add one, or change pools.{pool.role}.gpu"
            return _said("NodesMatched", False, Reason.NO_MATCHING_NODES, text)
    for pool in situation.pools:
        if pod := pool.unplaced():
            text = f"{pool.role}: pod {pod.name} waits for a free node: {pod.unplaced}"
            return _said("NodesMatched", False, Reason.INSUFFICIENT_CAPACITY, text)
    return _said("NodesMatched", True, Reason.NODES_MATCHED, "every pool has nodes" + _unprofiled(target))


def _unprofiled(target: Target) -> str:
    families = {pool.gpu.family for pool in target.pools.values() if pool.gpu and pool.gpu.family}
    odd = sorted(family for family in families if family.upper() not in PROFILED)
    return f"; nothing is claimed of the speed of {', '.join(odd)}, which has no profile" if odd else ""


def _pool(situation: Situation, pool: PoolCount) -> Finding:
    kind = f"{pool.role.capitalize()}PoolReady"
    count = f"{pool.updated} of {pool.wanted} {pool.role} machines are up to date and ready"
    if situation.held:
        return _said(kind, False, Reason.RDMA_UNAVAILABLE, situation.held)
    if pool.wanted == 0 and pool.replicas == 0:
        return _said(kind, False, Reason.SCALED_TO_ZERO, f"no {pool.role} machine is wanted")
    if pool.complete:
        return _said(kind, True, Reason.AS_SPECIFIED, count)
    if pod := pool.unplaced():
        return _said(kind, False, Reason.INSUFFICIENT_CAPACITY, f"{count}; {pod.name}: {pod.unplaced}")
    if pod := pool.troubled():
        return _said(kind, False, Reason.PODS_NOT_READY, f"{count}; {pod.name}: {pod.trouble}")
    if pool.old or not pool.settled or pool.replicas != pool.wanted:
        old = f"; {pool.old} of an earlier revision remain" if pool.old else ""
        return _said(kind, False, Reason.UPDATING, count + old)
    waiting = next((pod.name for pod in pool.pods if not pod.ready), "a pod")
    return _said(kind, False, Reason.PODS_NOT_READY, f"{count}; waiting for {waiting} to load its model")


def _router(situation: Situation) -> Finding:
    routers, report = situation.routers, situation.report
    count = f"{routers.ready} of {routers.wanted} routers are ready"
    if not routers.complete:
        trouble = f"; {routers.trouble}" if routers.trouble else ""
        return _said("RouterReady", False, Reason.ROUTER_NOT_READY, count + trouble)
    if report.silent:
        return Finding("RouterReady", "Unknown", Reason.ROUTER_NOT_READY, report.silent)
    for pool in situation.pools:
        known = (report.machines or {}).get(pool.role, pool.ready)
        if known < pool.ready:
            text = f"the routers can use {known} of {pool.ready} ready {pool.role} machines"
            return _said("RouterReady", False, Reason.MACHINES_UNKNOWN, text)
    return _said("RouterReady", True, Reason.AS_SPECIFIED, count)


def _kv_transport(situation: Situation) -> Finding | None:
    if situation.held:
        return _said("KVTransportReady", False, Reason.RDMA_UNAVAILABLE, situation.held)
    if transport := situation.report.transport:
        text = f"KV-caches travel over {transport}"
        return _said("KVTransportReady", True, Reason.TRANSPORT_IN_USE, text)
    return None


def _power_cap(situation: Situation) -> Finding | None:
    capped = [role for role, pool in situation.target.pools.items() if pool.power_cap]
    if not capped:
        return None
    text = f"the power cap of the {' and '.join(capped)} pool is not in force: no power agent is installed"
    return _said("PowerCapApplied", False, Reason.AGENT_NOT_INSTALLED, text)


def _spec_in_force(situation: Situation) -> Finding | None:
    lacking = shortfalls(situation.target.deployment.spec)
    if not lacking:
        return None
    text = "this release does not do all that is asked for: " + "; ".join(lacking)
    return _said("SpecInForce", False, Reason.NOT_IN_THIS_RELEASE, text)


def _slo_met(situation: Situation) -> Finding | None:
    if situation.target.deployment.spec.slo is None:
        return None
    text = "this release does not compare latencies with slo; the routers' metrics have them"
    return Finding("SLOMet", "Unknown", Reason.NOT_IN_THIS_RELEASE, text)


def _scaling(situation: Situation) -> Finding | None:
    target = situation.target
    external = [role for role, pool in target.pools.items() if pool.scaling.owner == "external"]
    if not external:
        return None
    scalers = {f"{target.name}-{role}" for role in external}
    ours = [each for each in situation.observed.autoscalers if each.scaler in scalers]
    for each in ours:
        if each.complaint:
            text = f"HorizontalPodAutoscaler {each.name}: {each.complaint}"
            return _said("ScalingReady", False, Reason.AUTOSCALER_FAILING, text)
    if not ours:
        text = "no HorizontalPodAutoscaler points at " + ", ".join(sorted(scalers))
        return Finding("ScalingReady", "Unknown", Reason.NO_AUTOSCALER, text)
    text = "sizes come from " + ", ".join(sorted(each.name for each in ours))
    return _said("ScalingReady", True, Reason.SCALED_EXTERNALLY, text)


def _available(situation: Situation) -> Finding:
    pair = bool(situation.usable.get("mixed") or situation.usable.get("prompt"))
    if pair and situation.routers.ready:
        return _said("Available", True, Reason.PAIR_USABLE, "requests can be served")
    lacking = "no router is ready" if pair else "no machines of one revision can serve a request together"
    return _said("Available", False, Reason.NO_USABLE_PAIR, lacking)


def _progressing(situation: Situation) -> Finding:
    for pool in situation.pools:
        if pool.old or not pool.settled or pool.replicas != pool.wanted:
            text = f"{pool.role}: {pool.updated} of {pool.wanted} machines are up to date and ready"
            return _said("Progressing", not situation.held, Reason.UPDATING, text)
    return _said("Progressing", False, Reason.AS_SPECIFIED, "nothing is being changed")


def _degraded(situation: Situation) -> Finding:
    for check in (_power_cap, _kv_transport, _scaling, _spec_in_force):
        finding = check(situation)
        if finding and finding.status == "False":
            return _said("Degraded", True, finding.reason, finding.message)
    for pool in situation.pools:
        if pod := pool.troubled():
            return _said("Degraded", True, Reason.PODS_NOT_READY, f"{pod.name}: {pod.trouble}")
    return _said("Degraded", False, Reason.NOTHING_LOST, "nothing is missing")


_CHECKS: tuple[Callable[[Situation], Finding | None], ...] = (
    _router,
    _kv_transport,
    _power_cap,
    _spec_in_force,
    _slo_met,
    _scaling,
    _available,
    _progressing,
    _degraded,
)

_SUMMED = ("NodesMatched", "PromptPoolReady", "TokenPoolReady", "MixedPoolReady", "RouterReady")


def _ready(situation: Situation, parts: Sequence[Finding]) -> Finding:
    """The first thing that keeps the deployment from being what the spec says, or that nothing does."""
    if situation.refused:
        return _said("Ready", False, Reason.APPLY_FAILED, "; ".join(situation.refused))
    if situation.held:
        return _said("Ready", False, Reason.RDMA_UNAVAILABLE, situation.held)
    if all(pool.wanted == 0 for pool in situation.pools):
        return _said("Ready", False, Reason.SCALED_TO_ZERO, "no machine is wanted")
    for part in parts:
        if part.type in _SUMMED and not part.holds and not _spare(situation, part):
            return Finding("Ready", "False", part.reason, part.message)
    return _said("Ready", True, Reason.AS_SPECIFIED, "everything is as specified")


def _spare(situation: Situation, part: Finding) -> bool:
    """An empty pool does not matter while mixed machines do its work."""
    mixed = any(pool.role == "mixed" and pool.wanted for pool in situation.pools)
    return part.reason == Reason.SCALED_TO_ZERO and mixed


# ---- into the form of the API


def conditions(
    found: Iterable[Finding], before: Iterable[Condition], *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Findings as metav1 conditions; a transition time moves only when a status flips."""
    last = {condition.type: condition for condition in before}
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return tuple(
        Condition(
            type=finding.type,
            status=finding.status,
            reason=finding.reason,
            message=finding.message,
            last_transition_time=(
                last[finding.type].last_transition_time
                if finding.type in last and last[finding.type].status == finding.status
                else time
            ),
            observed_generation=generation,
        )
        for finding in found
    )
