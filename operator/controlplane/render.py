"""Previews: what would be applied, and what a changed object would do, without a cluster."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controlplane import rollout
from controlplane.api import SplitwiseDeployment
from controlplane.children import Desired, desired
from controlplane.diff import differences, ref_of
from controlplane.names import Manifest
from controlplane.observe import Ref
from controlplane.rollout import Machines
from controlplane.settings import OperatorSettings
from controlplane.target import Target

STEPS_SHOWN = 1000


def render(deployment: SplitwiseDeployment, settings: OperatorSettings | None = None) -> list[Manifest]:
    """Every object the operator would make, in order, but the Secret with its random content.

    Raises InvalidDeployment for what pods cannot have."""
    target = Target(deployment, settings or OperatorSettings())
    return desired(target).manifests({role: target.size(role) for role in target.pools})


@dataclass(frozen=True, slots=True)
class Preview:
    """One object that would change: `why` it changes, and whether pods restart for it."""

    ref: Ref
    action: str
    why: tuple[str, ...]
    restarts: bool


def diff(
    old: SplitwiseDeployment, new: SplitwiseDeployment, settings: OperatorSettings | None = None
) -> list[Preview]:
    """What would change if `new` replaced `old`, in the order of the new objects, removals last."""
    before = {_place(each): each for each in render(old, settings)}
    after = {_place(each): each for each in render(new, settings)}
    found = [
        preview
        for place, manifest in after.items()
        if (preview := _changed(before.get(place), manifest)) is not None
    ]
    gone = [
        Preview(ref_of(before[place]), "remove", (), restarts=False) for place in before if place not in after
    ]
    return found + gone


def _place(manifest: Manifest) -> tuple[str, str]:
    """Where an object belongs: a pool's StatefulSet and settings keep their place over templates."""
    kind, labels = manifest["kind"], manifest["metadata"]["labels"]
    templated = "splitwise.dev/template" in labels
    return kind, labels["splitwise.dev/pool"] if templated else manifest["metadata"]["name"]


_HASHES = ("splitwise.dev/template", "splitwise.dev/revision", "splitwise.dev/config", "metadata.name")


def _changed(before: Manifest | None, after: Manifest) -> Preview | None:
    if before is None:
        return Preview(ref_of(after), "create", (), restarts=False)
    old, new = _readable(before), _readable(after)
    reasons = list(differences(new, old))
    reasons += [reason for reason in differences(old, new) if ": nothing ->" in reason]
    telling = tuple(reason for reason in reasons if not any(name in reason for name in _HASHES))
    template = before.get("spec", {}).get("template") != after.get("spec", {}).get("template")
    if not telling and not template:
        return None
    return Preview(ref_of(after), "change", telling, restarts=template)


def _readable(manifest: Manifest) -> Manifest:
    """Settings files as what they hold, so that a difference names the setting."""
    if manifest["kind"] != "ConfigMap":
        return manifest
    return manifest | {"data": {name: json.loads(text) for name, text in manifest["data"].items()}}


def steps(
    old: SplitwiseDeployment, new: SplitwiseDeployment, settings: OperatorSettings | None = None
) -> Iterator[Mapping[str, int]]:
    """The sizes of all StatefulSets, step by step, if every new machine comes up."""
    settings = settings or OperatorSettings()
    target, earlier = Target(new, settings), Target(old, settings)
    sets = {each.name: each for each in _sets(earlier, desired(earlier), current=False)}
    for each in _sets(target, desired(target), current=True):
        there = sets.get(each.name)
        sets[each.name] = Machines(
            each.name,
            each.role,
            each.revision,
            replicas=there.replicas if there else 0,
            ready=there.ready if there else frozenset(),
            current=True,
        )
    wanted = {role: target.size(role) for role in target.pools}
    now = list(sets.values())
    for _ in range(STEPS_SHOWN):
        sizes = rollout.next_step(wanted, now)
        if sizes == {each.name: each.replicas for each in now}:
            return
        yield sizes
        now = [_come_up(each, sizes[each.name]) for each in now]


def _sets(target: Target, wanted: Desired, *, current: bool) -> Iterator[Machines]:
    for workload in wanted.workloads:
        size = target.size(workload.role)
        yield Machines(
            workload.name,
            workload.role,
            target.revision,
            replicas=size,
            ready=frozenset(range(size)),
            current=current,
        )


def _come_up(machines: Machines, size: int) -> Machines:
    return Machines(
        machines.name,
        machines.role,
        machines.revision,
        replicas=size,
        ready=frozenset(range(size)),
        current=machines.current,
    )
