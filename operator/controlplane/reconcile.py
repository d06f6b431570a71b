"""One pass over one deployment: gather, decide, act, report. Level-triggered: what happened before, and why
the pass was asked for, does not matter."""

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from controlplane import conditions, events, names, nodes, population, report, trust
from controlplane.api import KIND, InvalidDeployment, parse
from controlplane.api.status import Status
from controlplane.children import Desired, desired
from controlplane.conditions import Situation
from controlplane.decide import Decision, decide, sizes
from controlplane.diff import Apply, Change, Create, Delete, LabelNode, Resize, differences
from controlplane.errors import ApiError, Conflict, NotFound
from controlplane.gpus import Node
from controlplane.kube import Kube
from controlplane.names import Manifest
from controlplane.observe import Observed, gather
from controlplane.routers import RouterReport, Routers, Unasked
from controlplane.settings import OperatorSettings
from controlplane.target import Target
from runtime import log

Key = tuple[str, str]
"""Namespace and name of a deployment."""

SOON_SECONDS = 2.0
"""When routers tell no API server what they learn, one asks again."""
ASK_AGAIN_SECONDS = 30.0
logger = log.logger("reconcile")


def _now() -> datetime:
    return datetime.now(UTC)


def _no_nodes() -> Sequence[Node]:
    return ()


@dataclass(frozen=True, slots=True)
class World:
    """What passes work with. `nodes` are the cluster's as last seen; `monitors`: it knows ServiceMonitors;
    `told`: the version of each deployment that our last status made, which is no news when it comes back."""

    kube: Kube
    settings: OperatorSettings = field(default_factory=OperatorSettings)
    routers: Routers = field(default_factory=Unasked)
    nodes: Callable[[], Sequence[Node]] = _no_nodes
    monitors: bool = False
    now: Callable[[], datetime] = _now
    random_secret: Callable[[], str] = lambda: secrets.token_urlsafe(48)
    told: dict[Key, str] = field(default_factory=dict)


async def reconcile(key: Key, world: World) -> float | None:
    """Bring one deployment nearer to its spec and say how it stands.

    Returns the seconds after which to look again without a cause, or None. Raises ApiError if something
    could not be done; the rest has been done by then.
    """
    begun = time.monotonic()
    namespace, name = key
    try:
        document = await world.kube.get(KIND, namespace, name)
    except NotFound:
        await leave_nodes(key, world)
        return None
    if "deletionTimestamp" in document["metadata"]:
        return None  # owner references do the rest; whatever we made now would be in the way (STATUS-3)
    before = Status.model_validate(document.get("status") or {})
    generation = int(document["metadata"]["generation"])
    try:
        target = _target(document, world)
        observed = await _gather(document, target, world)
        target = replace(target, sizes=sizes(target, observed))
        wanted = desired(target)
    except InvalidDeployment as error:
        found = conditions.invalid(str(error))
        status = report.refused(before, found, generation=generation, now=world.now())
        await _tell(document, before, status, (), world)
        return None
    decision = decide(target, wanted, observed)
    errors = await _act(target, observed, decision, world)
    answer = await _ask(observed, target, world)
    situation = _situation(target, wanted, observed, decision, answer, errors)
    found = conditions.findings(situation)
    status = report.status(situation, found, before, generation=generation, now=world.now())
    await _tell(document, before, status, decision.changes, world)
    await _tell_scalers(situation, world)
    _log(key, decision, begun)
    if errors:
        raise errors[0]
    return _again(found, answer, world)


def _target(document: Manifest, world: World) -> Target:
    without_status = {field: value for field, value in document.items() if field != "status"}
    return Target(
        parse(without_status),
        settings=world.settings,
        uid=document["metadata"]["uid"],
        monitors=world.monitors,
    )


async def _gather(document: Manifest, target: Target, world: World) -> Observed:
    external = any(pool.scaling.owner == "external" for pool in target.pools.values())
    return await gather(world.kube, document, nodes=world.nodes(), monitors=world.monitors, external=external)


def _situation(
    target: Target,
    wanted: Desired,
    observed: Observed,
    decision: Decision,
    answer: RouterReport,
    errors: Sequence[ApiError],
) -> Situation:
    return Situation(
        target=target,
        observed=observed,
        pools=population.count(target, wanted, observed),
        routers=population.routers(target, observed),
        report=answer,
        usable=decision.usable,
        held=wanted.held,
        refused=tuple(str(error) for error in errors if 400 <= error.status < 500 and error.status != 409),
    )


# ---- act


async def _act(target: Target, observed: Observed, decision: Decision, world: World) -> list[ApiError]:
    """Make every change, and collect what could not be done."""
    errors: list[ApiError] = []
    kept = trust.keep(observed.trust, target, world.kube, random_key=world.random_secret, now=world.now())
    await _attempt(kept, errors)
    for change in decision.changes:
        await _attempt(_make(change, target.namespace, world.kube), errors)
    return errors


async def _attempt(work: Awaitable[None], errors: list[ApiError]) -> None:
    try:
        await work
    except (Conflict, NotFound) as error:
        logger.info("overtaken", error=str(error))  # the event that tells of it brings the next pass
    except ApiError as error:
        errors.append(error)


async def _make(change: Change, namespace: str, kube: Kube) -> None:
    match change:
        case Apply(manifest):
            await kube.apply(manifest)
        case Create(manifest):
            await kube.create(manifest)
        case Resize(ref, replicas):
            await kube.patch(ref.kind, namespace, ref.name, {"spec": {"replicas": replicas}})
        case Delete(ref, uid):
            await kube.delete(ref.kind, namespace, ref.name, uid)
        case LabelNode(node, labels):
            await kube.patch("Node", "", node, {"metadata": {"labels": dict(labels)}})


async def leave_nodes(key: Key, world: World) -> None:
    """Take a deployment's labels off all nodes."""
    prefix = names.node_prefix(*key)
    for change in nodes.changes(prefix, {}, world.nodes()):
        try:
            await _make(change, "", world.kube)
        except NotFound:
            continue


# ---- report


async def _ask(observed: Observed, target: Target, world: World) -> RouterReport:
    ready = [pod for pod in observed.pods if pod.component == "router" and pod.ready and pod.address]
    port = target.deployment.spec.router.port
    return await world.routers.ask([f"{pod.address}:{port}" for pod in ready])


async def _tell(
    document: Manifest, before: Status, status: Status, changes: Sequence[Change], world: World
) -> None:
    """Write the status if it says something new, and tell what flipped."""
    said = status.document()
    if list(differences(said, before.document())) or list(differences(before.document(), said)):
        written = await world.kube.apply(_status_of(document, said), subresource="status")
        metadata = document["metadata"]
        key = metadata["namespace"], metadata["name"]
        world.told[key] = written["metadata"].get("resourceVersion", "")
    told = [*events.transitions(before.conditions, status.conditions), *events.steps(changes)]
    for event in told:
        try:
            await world.kube.create(event.manifest(document, world.now()))
        except ApiError as error:
            logger.warning("an event was not taken", error=str(error))


async def _tell_scalers(situation: Situation, world: World) -> None:
    target = situation.target
    for scaler in situation.observed.of("SplitwisePool"):
        for pool in situation.pools:
            if scaler["metadata"]["name"] != names.pool(target.name, pool.role):
                continue
            said = report.scaler_status(target, pool).document()
            if list(differences(said, scaler.get("status") or {})):
                await world.kube.apply(_status_of(scaler, said), subresource="status")


def _status_of(document: Manifest, status: Manifest) -> Manifest:
    metadata = {field: document["metadata"][field] for field in ("name", "namespace")}
    head = {field: document[field] for field in ("apiVersion", "kind")}
    return head | {"metadata": metadata, "status": status}


def _again(found: Sequence[conditions.Finding], answer: RouterReport, world: World) -> float | None:
    """Routers and autoscalers change their minds without an event that we would see."""
    scaled = any(finding.type == "ScalingReady" for finding in found)
    if isinstance(world.routers, Unasked):
        return ASK_AGAIN_SECONDS if scaled else None
    waiting = found[0].reason in (conditions.Reason.MACHINES_UNKNOWN, conditions.Reason.ROUTER_NOT_READY)
    return SOON_SECONDS if waiting or answer.silent else ASK_AGAIN_SECONDS


def _log(key: Key, decision: Decision, begun: float) -> None:
    if decision.changes:
        whys = [f"{_what(change)}: {change.why}" for change in decision.changes]
        logger.info(
            "pass", deployment="/".join(key), changes=whys, seconds=round(time.monotonic() - begun, 3)
        )


def _what(change: Change) -> str:
    match change:
        case Apply(manifest) | Create(manifest):
            return f"{manifest['kind']}/{manifest['metadata']['name']}"
        case Resize(ref) | Delete(ref):
            return f"{ref.kind}/{ref.name}"
        case LabelNode(node):
            return f"Node/{node}"
