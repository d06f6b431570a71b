"""The next safe step when pools change, from what is there now alone.

A machine is *usable* if it is ready and a ready partner of its revision exists: a prompt machine needs a
token (or mixed) machine, a token machine a prompt (or mixed) one, a mixed machine nobody. Two rules follow:

  grow    New machines come in levels that keep the prompt:token ratio: at level j of N (the larger pool's
          size) each pool has ceil(j * wanted / N) of them. A level starts when the one before is ready.
  shrink  Old machines go, revision by revision, smallest first, as far as every pool keeps its floor of
          usable machines without them. A revision that is still needed keeps a partner in each pool. One
          that cannot serve goes if it is broken; if it merely is not ready now, it may be in a moment.

The floor is the wanted size; while a new machine finds no node it is one less in every pool of two or more,
since then only old ones can make room, and they go together; the other pools do not wait for that machine.
Nothing is remembered between steps, so a second edit or a revert in the middle is just another state to go
on from.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runtime.config import Role

Sizes = dict[str, int]
Counts = Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class Machines:
    """One StatefulSet as it is: machines of one role and template. `ready` holds their ordinals; `current`
    says that the template is what the spec says; `short` that one of them finds no node; `broken` that none
    is ready and one cannot run."""

    name: str
    role: Role
    revision: str
    replicas: int
    ready: frozenset[int] = frozenset()
    current: bool = False
    short: bool = False
    broken: bool = False

    def sized(self, replicas: int) -> "Machines":
        """What stays of them; a StatefulSet gives up its highest ordinals."""
        kept = frozenset(ordinal for ordinal in self.ready if ordinal < replicas)
        return replace(self, replicas=replicas, ready=kept)

    def least(self, ready: int) -> int:
        """The smallest size at which so many are ready; all of them if there are not so many."""
        ordinals = sorted(self.ready)
        return ordinals[ready - 1] + 1 if 0 < ready <= len(ordinals) else self.replicas * bool(ready)


def usable(sets: Iterable[Machines]) -> dict[Role, int]:
    """Usable machines by role."""
    ready: dict[str, dict[Role, int]] = {}
    for machines in sets:
        counts = ready.setdefault(machines.revision, {"prompt": 0, "token": 0, "mixed": 0})
        counts[machines.role] += len(machines.ready)
    total: dict[Role, int] = {"prompt": 0, "token": 0, "mixed": 0}
    for counts in ready.values():
        total["mixed"] += counts["mixed"]
        if counts["token"] or counts["mixed"]:
            total["prompt"] += counts["prompt"]
        if counts["prompt"] or counts["mixed"]:
            total["token"] += counts["token"]
    return total


def floor(wanted: Counts, sets: Sequence[Machines]) -> dict[Role, int]:
    """Machines of each pool that stay usable throughout."""
    short = any(machines.current and machines.short for machines in sets)
    return {role: max(1, size - 1) if size and short else size for role, size in wanted.items()}


def next_step(wanted: Counts, sets: Sequence[Machines]) -> Sizes:
    """The size every StatefulSet shall have now, by name.

    wanted: machines by role of the spec. sets: all StatefulSets of the deployment, with one `current` set
    for each wanted role, which may not exist yet (0 replicas). Done when old sets are at 0 and the current
    ones at the wanted size.
    """
    current = [machines for machines in sets if machines.current]
    old = [machines for machines in sets if not machines.current and machines.replicas]
    sizes = {machines.name: 0 for machines in sets}
    sizes |= _grown(wanted, current, rolling=bool(old))
    staying = [machines.sized(min(machines.replicas, sizes[machines.name])) for machines in current]
    floors = floor(wanted, sets)
    for group in _by_revision(old):
        others = staying + [machines for machines in old if machines not in group]
        kept = _kept(group, floors, usable(others), usable(others + group))
        sizes |= {machines.name: machines.replicas for machines in kept}
        old = [machines for machines in old if machines not in group] + kept
    return sizes


def _grown(wanted: Counts, current: Sequence[Machines], *, rolling: bool) -> Sizes:
    """Sizes of the current sets: what is wanted at once, or level by level while old machines serve."""
    if not rolling:
        return {machines.name: wanted[machines.role] for machines in current}
    levels = max(wanted.values(), default=0)

    def at(level: int, role: Role) -> int:
        return -(-level * wanted[role] // levels) if levels else 0

    level = 0
    while level < levels and all(
        len(each.ready) >= at(level + 1, each.role) or each.short for each in current
    ):
        level += 1
    return {
        each.name: min(wanted[each.role], max(each.replicas, at(min(level + 1, levels), each.role)))
        for each in current
    }


def _by_revision(old: Sequence[Machines]) -> list[list[Machines]]:
    """Old sets by revision, the revision of which least is usable first; ties by name."""
    revisions = sorted({machines.revision for machines in old})
    groups = [[machines for machines in old if machines.revision == revision] for revision in revisions]
    return sorted(groups, key=lambda group: sum(usable(group).values()))


def _kept(group: Sequence[Machines], floors: Counts, others: Counts, all_: Counts) -> list[Machines]:
    """What has to stay of one revision's old sets, given what is usable without and with them."""
    need = {role: max(0, floors[role] - others[role]) for role in floors}
    helps = any(all_[role] > others[role] for role in all_)
    broken = any(machines.broken for machines in group)
    if not any(need.values()) or (broken and not helps):
        return [machines.sized(0) for machines in group]
    if not helps:
        return list(group)
    return [
        machines.sized(machines.least(max(1, need[machines.role]))) if machines.role in need else machines
        for machines in group
    ]
