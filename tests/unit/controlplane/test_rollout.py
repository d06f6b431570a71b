"""The rollout keeps its floor and its ratio, whatever is edited when, and ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.rollout import Machines, next_step, usable
from runtime.config import Role

Wanted = Mapping[Role, int]


def machines(
    role: Role, revision: str, size: int, *, ready: int | None = None, current: bool = False
) -> Machines:
    up = range(size if ready is None else ready)
    return Machines(f"{role}-{revision}", role, revision, size, frozenset(up), current)


@dataclass
class World:
    """StatefulSets as a controller would move them; `capacity` are nodes per role, none meaning enough."""

    sets: dict[str, Machines] = field(default_factory=dict)
    capacity: Mapping[Role, int] | None = None

    def apply(self, wanted: Wanted, revision: str) -> None:
        """The spec says so now."""
        for role in wanted:
            name = f"{role}-{revision}"
            self.sets.setdefault(name, machines(role, revision, 0))
        self.sets = {
            name: replace(each, current=each.revision == revision and each.role in wanted)
            for name, each in self.sets.items()
        }

    def step(self, wanted: Wanted) -> bool:
        """One pass; whether it changed a size."""
        sizes = next_step(wanted, self.seen())
        before = dict(self.sets)
        self.sets = {name: each.sized(sizes[name]) for name, each in self.sets.items()}
        return self.sets != before

    def seen(self) -> list[Machines]:
        return [replace(each, short=self._short(each)) for each in self.sets.values()]

    def come_up(self, name: str) -> None:
        """One more machine of this set becomes ready, if a node is free."""
        each = self.sets[name]
        missing = sorted(set(range(each.replicas)) - each.ready)
        if missing and not self._full(each.role):
            self.sets[name] = replace(each, ready=each.ready | {missing[0]})

    def _full(self, role: Role) -> bool:
        if self.capacity is None:
            return False
        return self._placed(role) >= self.capacity[role]

    def _placed(self, role: Role) -> int:
        return sum(len(each.ready) for each in self.sets.values() if each.role == role)

    def _short(self, each: Machines) -> bool:
        return each.replicas > len(each.ready) and self._full(each.role)


def started(wanted: Wanted, revision: str = "a", capacity: Mapping[Role, int] | None = None) -> World:
    """Everything ready at one revision."""
    world = World(capacity=capacity)
    world.apply(wanted, revision)
    world.step(wanted)
    world.sets = {
        name: replace(each, ready=frozenset(range(each.replicas))) for name, each in world.sets.items()
    }
    return world


def finish(world: World, wanted: Wanted, revision: str) -> int:
    """Steps until everything is as wanted; each lets every machine come up that can."""
    for count in range(200):
        moved = world.step(wanted)
        for name, each in world.sets.items():
            for _ in range(each.replicas):
                world.come_up(name)
        done = all(
            (each.replicas, len(each.ready)) == ((wanted[each.role],) * 2 if each.current else (0, 0))
            for each in world.sets.values()
        )
        if done and not moved:
            return count
    raise AssertionError(f"does not end: {world.sets}")


def test_first_machines_come_all_at_once() -> None:
    world = World()
    world.apply({"prompt": 3, "token": 1}, "a")
    assert next_step({"prompt": 3, "token": 1}, world.seen()) == {"prompt-a": 3, "token-a": 1}


def test_scaling_without_a_rollout_is_one_step() -> None:
    world = started({"prompt": 3, "token": 2})
    assert next_step({"prompt": 1, "token": 5}, world.seen()) == {"prompt-a": 1, "token-a": 5}


def test_the_ratio_is_kept_level_by_level() -> None:
    wanted: Wanted = {"prompt": 3, "token": 1}
    world = started(wanted)
    world.apply(wanted, "b")
    seen = []
    for _ in range(5):
        world.step(wanted)
        seen.append({name: each.replicas for name, each in world.sets.items()})
        for name in ("prompt-b", "token-b"):
            world.come_up(name)
    assert seen == [
        {"prompt-a": 3, "token-a": 1, "prompt-b": 1, "token-b": 1},
        {"prompt-a": 2, "token-a": 1, "prompt-b": 2, "token-b": 1},
        {"prompt-a": 1, "token-a": 1, "prompt-b": 3, "token-b": 1},
        {"prompt-a": 0, "token-a": 0, "prompt-b": 3, "token-b": 1},
        {"prompt-a": 0, "token-a": 0, "prompt-b": 3, "token-b": 1},
    ]


def test_a_lone_machine_waits_for_its_successor() -> None:
    sets = [machines("mixed", "a", 1), replace(machines("mixed", "b", 1, ready=0, current=True), short=True)]
    assert next_step({"mixed": 1}, sets) == {"mixed-a": 1, "mixed-b": 1}


def test_without_a_spare_node_one_old_machine_makes_room() -> None:
    wanted: Wanted = {"prompt": 3, "token": 2}
    world = started(wanted, capacity={"prompt": 3, "token": 2})
    world.apply(wanted, "b")
    assert finish(world, wanted, "b") > 2


def test_a_broken_old_revision_makes_room_at_once() -> None:
    old = [replace(machines(role, "a", 2, ready=0), broken=True) for role in ("prompt", "token")]
    new = [machines("prompt", "b", 0, current=True), machines("token", "b", 0, current=True)]
    sizes = next_step({"prompt": 2, "token": 2}, [*old, *new])
    assert (sizes["prompt-a"], sizes["token-a"]) == (0, 0)


def test_an_old_revision_that_is_not_ready_for_a_moment_stays() -> None:
    old = [machines(role, "a", 2, ready=0) for role in ("prompt", "token")]
    new = [machines("prompt", "b", 0, current=True), machines("token", "b", 0, current=True)]
    sizes = next_step({"prompt": 2, "token": 2}, [*old, *new])
    assert (sizes["prompt-a"], sizes["token-a"]) == (2, 2)


def test_the_ready_machine_is_kept_not_the_first_one() -> None:
    old = replace(machines("mixed", "a", 3), ready=frozenset({2}))
    new = machines("mixed", "b", 1, current=True)
    assert next_step({"mixed": 2}, [old, new])["mixed-a"] == 3


@pytest.mark.parametrize("wanted", [{"mixed": 3}, {"prompt": 2, "token": 1}])
def test_from_mixed_machines_to_pairs_and_back(wanted: Wanted) -> None:
    other: Wanted = {"prompt": 2, "token": 1} if "mixed" in wanted else {"mixed": 3}
    world = started(other)
    world.apply(wanted, "a")
    for _ in range(20):
        world.step(wanted)
        assert sum(usable(world.sets.values()).values()) >= 1
        for name in world.sets:
            world.come_up(name)
    assert {name: each.replicas for name, each in world.sets.items() if each.replicas} == {
        f"{role}-a": size for role, size in wanted.items()
    }


def test_usable_needs_a_partner_of_the_same_revision() -> None:
    apart: Sequence[Machines] = [machines("prompt", "a", 2), machines("token", "b", 3)]
    assert usable(apart) == {"prompt": 0, "token": 0, "mixed": 0}
    together = [*apart, machines("mixed", "b", 1)]
    assert usable(together) == {"prompt": 0, "token": 3, "mixed": 1}


SIZES = st.integers(1, 5)


@given(
    prompt=SIZES,
    token=SIZES,
    edits=st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abcd")), max_size=5),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_edits_and_reverts_never_go_under_the_floor(
    prompt: int, token: int, edits: list[tuple[int, str]], data: st.DataObject
) -> None:
    """DRAIN-4: whatever revision is asked for in the middle of whatever rollout."""
    wanted: Wanted = {"prompt": prompt, "token": token}
    world = started(wanted)
    revision = "a"
    for events, revision in edits:
        world.apply(wanted, revision)
        for _ in range(events):
            world.step(wanted)
            world.come_up(data.draw(st.sampled_from(sorted(world.sets))))
            count = usable(world.sets.values())
            assert count["prompt"] >= prompt
            assert count["token"] >= token
    world.apply(wanted, revision)
    finish(world, wanted, revision)


@given(prompt=SIZES, token=SIZES)
@settings(max_examples=50, deadline=None)
def test_no_more_than_one_machine_over_the_top(prompt: int, token: int) -> None:
    wanted: Wanted = {"prompt": prompt, "token": token}
    world = started(wanted)
    world.apply(wanted, "b")
    for _ in range(40):
        world.step(wanted)
        for role, size in wanted.items():
            assert sum(each.replicas for each in world.sets.values() if each.role == role) <= size + 1
        for name in world.sets:
            world.come_up(name)


@given(prompt=st.integers(2, 5), token=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_full_clusters_roll_with_one_machine_less(prompt: int, token: int) -> None:
    wanted: Wanted = {"prompt": prompt, "token": token}
    world = started(wanted, capacity=wanted)
    world.apply(wanted, "b")
    for _ in range(100):
        world.step(wanted)
        count = usable(world.sets.values())
        assert count["prompt"] >= prompt - 1
        assert count["token"] >= token - 1
        for name in world.sets:
            world.come_up(name)
    assert all(each.replicas == 0 for each in world.sets.values() if not each.current)
