"""From what shall be and what is to what is to be done: plain functions of their arguments."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from controlplane import names, nodes, rollout
from controlplane.children import Desired
from controlplane.children.pools import seeded
from controlplane.diff import Apply, Change, Create, Delete, LabelNode, Resize, applies, ref_of
from controlplane.names import Manifest
from controlplane.observe import Observed, Ref
from controlplane.population import machines
from controlplane.target import Target
from runtime.config import Role


@dataclass(frozen=True, slots=True)
class Decision:
    """Changes in the order in which they are made; `usable` machines by role, as they are now."""

    changes: tuple[Change, ...]
    usable: Mapping[Role, int]


def sizes(target: Target, observed: Observed) -> dict[Role, int]:
    """Machines wanted by role: an externally scaled pool's from its scaler object, once that exists."""
    found: dict[Role, int] = {}
    for role, pool in target.pools.items():
        found[role] = pool.replicas
        scaler = observed.children.get(Ref("SplitwisePool", names.pool(target.name, role)))
        if pool.scaling.owner == "external" and scaler is not None:
            found[role] = int(scaler.get("spec", {}).get("replicas", pool.replicas))
    return found


def decide(target: Target, desired: Desired, observed: Observed) -> Decision:
    """Everything to be done now. Nothing, if all is as it shall be."""
    sets = machines(desired, observed)
    step = rollout.next_step({role: target.size(role) for role in target.pools}, sets)
    sized = [each.sized(step[each.name]) for each in desired.workloads]
    wanted = [*desired.fixed, *sized, *desired.routers]
    changes: list[Change] = [*applies(wanted, observed.children)]
    changes += _seeds(target, desired, observed)
    if not desired.held:
        changes += _resizes(step, desired, observed)
    changes += _removals(desired, observed)
    labels = nodes.wanted(target, observed.nodes, observed.pods)
    prefix = names.node_prefix(target.namespace, target.name)
    changes += nodes.changes(prefix, labels, observed.nodes)
    return Decision(tuple(sorted(changes, key=_order)), rollout.usable(sets))


def _order(change: Change) -> int:
    """Labels first, since pods wait for them; then what is applied, in its own order; removals last."""
    return {LabelNode: 0, Apply: 1, Create: 1, Resize: 2, Delete: 3}[type(change)]


def _seeds(target: Target, desired: Desired, observed: Observed) -> Iterator[Change]:
    for scaler in desired.scalers:
        role: Role = scaler["metadata"]["labels"][names.POOL]
        if ref_of(scaler) not in observed.children:
            yield Create(seeded(scaler, target.size(role)), "missing")


def _resizes(step: Mapping[str, int], desired: Desired, observed: Observed) -> Iterator[Change]:
    """New sizes of the StatefulSets of earlier templates."""
    current = {workload.name for workload in desired.workloads}
    for item in observed.of("StatefulSet"):
        name, replicas = item["metadata"]["name"], int(item["spec"].get("replicas", 1))
        if name not in current and step[name] != replicas:
            why = f"{replicas} -> {step[name]} machines: newer ones have taken over"
            yield Resize(Ref("StatefulSet", name), step[name], why)


def _removals(desired: Desired, observed: Observed) -> Iterator[Change]:
    """Children that nothing wants any more. A StatefulSet goes when its last machine has gone, and its
    settings go with it."""
    wanted = {ref_of(each) for each in (*desired.fixed, *desired.scalers, *desired.routers)}
    wanted |= {ref_of(each.stateful_set) for each in desired.workloads}
    kept = {name for kind, name in observed.children if kind == "StatefulSet"}
    for ref, child in observed.children.items():
        if ref in wanted or "deletionTimestamp" in child["metadata"]:
            continue
        if ref.kind == "StatefulSet" and (desired.held or not _empty(child)):
            continue
        if ref.kind in ("ConfigMap", "Service") and _serves(ref, child, kept, observed):
            continue
        yield Delete(ref, child["metadata"]["uid"], "no longer wanted")


def _serves(ref: Ref, child: Manifest, sets: Iterable[str], observed: Observed) -> bool:
    """A StatefulSet that still exists needs its settings and its headless Service."""
    if ref.kind == "ConfigMap":
        return ref.name in set(sets)
    services = {item["spec"].get("serviceName") for item in observed.of("StatefulSet")}
    return ref.name in services


def _empty(workload: Manifest) -> bool:
    status = workload.get("status", {})
    seen = status.get("observedGeneration", 0) == workload["metadata"]["generation"]
    return bool(seen and workload["spec"].get("replicas") == 0 and status.get("replicas", 0) == 0)
