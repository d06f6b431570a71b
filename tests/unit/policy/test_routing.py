"""Join the shortest queue in both pools at once, or say why not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.policy.routing import route
from runtime.policy.work import Degraded, MachineLoad, NoRoute, Request, Role, Route

SMALL = Request(prompt_tokens=100, output_tokens=20)


def machine(
    name: str,
    pending: int = 0,
    *,
    revision: str = "1",
    kv: int = 0,
    kv_total: int = 0,
    role: Role | None = None,
) -> MachineLoad:
    """Its role is its name's first letter: p1, t1, m1."""
    roles: dict[str, Role] = {"p": "prompt", "t": "token", "m": "mixed"}
    return MachineLoad(name, role or roles[name[0]], revision, pending, 0, kv, kv_total)


def pair(found: Route | NoRoute) -> tuple[str, str]:
    assert isinstance(found, Route), found
    return found.prompt, found.token


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        pytest.param([machine("p1"), machine("t1")], ("p1", "t1"), id="one of each"),
        pytest.param([machine("p1", 9), machine("p2", 8), machine("t1")], ("p2", "t1"), id="shortest prompt"),
        pytest.param([machine("p1"), machine("t1", 3), machine("t2", 2)], ("p1", "t2"), id="shortest token"),
        pytest.param(
            [machine("p2"), machine("p1"), machine("t2"), machine("t1")], ("p1", "t1"), id="by name"
        ),
        pytest.param(
            [machine("m1"), machine("p1"), machine("t1")], ("p1", "t1"), id="dedicated before mixed"
        ),
        pytest.param(
            [machine("m1"), machine("p1", 1), machine("t1")], ("m1", "t1"), id="mixed takes prompts"
        ),
        pytest.param([machine("m1"), machine("p1"), machine("t1", 1)], ("p1", "m1"), id="mixed takes tokens"),
        pytest.param(
            [machine("m1", 5), machine("p1", 6), machine("t1", 6)], ("m1", "m1"), id="mixed takes both"
        ),
        pytest.param([machine("m1", 1), machine("m2")], ("m2", "m2"), id="only mixed"),
    ],
)
def test_the_shortest_queues_are_joined(machines: list[MachineLoad], expected: tuple[str, str]) -> None:
    assert pair(route(SMALL, machines)) == expected


def test_both_kinds_of_pending_tokens_count() -> None:
    busy = replace(machine("p1"), pending_token_tokens=3)
    assert pair(route(SMALL, [busy, machine("p2", 2), machine("t1")])) == ("p2", "t1")


@pytest.mark.fault("DRAIN-5")
@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ([machine("p1"), machine("t1", revision="2"), machine("t2", 99)], ("p1", "t2")),
        ([machine("p1"), machine("p2", 50, revision="2"), machine("t2", 9, revision="2")], ("p2", "t2")),
        (
            [machine("p1", 9), machine("t1"), machine("p2", 8, revision="2"), machine("t2", revision="2")],
            ("p2", "t2"),
        ),
        ([machine("p1", 9), machine("t1"), machine("m2", 5, revision="2")], ("m2", "m2")),
    ],
)
def test_only_machines_of_one_revision_are_paired(
    machines: list[MachineLoad], expected: tuple[str, str]
) -> None:
    assert pair(route(SMALL, machines)) == expected


def test_revisions_without_a_common_pair_are_named() -> None:
    found = route(SMALL, [machine("p1", revision="a"), machine("t1", revision="b")])
    assert isinstance(found, NoRoute)
    assert "revision a" in found.why
    assert "revision b" in found.why


@pytest.mark.fault("SPLIT-1")
@pytest.mark.parametrize(
    ("machines", "why"),
    [
        ([], "the prompt pool and the token pool are empty"),
        ([machine("t1")], "the prompt pool is empty"),
        ([machine("p1")], "the token pool is empty"),
    ],
)
@pytest.mark.parametrize("degraded", ["fail", "recompute"])
def test_an_empty_pool_is_named_and_never_silently_replaced(
    machines: list[MachineLoad], why: str, degraded: Degraded
) -> None:
    found = route(SMALL, machines, degraded=degraded)
    assert isinstance(found, NoRoute)
    assert why in found.why


@pytest.mark.fault("SPLIT-1")
@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ([machine("t1", 3), machine("t2", 2)], "t2"),
        ([machine("p1", 3), machine("p2", 2)], "p2"),
        ([machine("p1", 3, revision="a"), machine("t1", 2, revision="b")], "t1"),
        ([machine("t1", kv=2000, kv_total=2048), machine("t2", 50, kv_total=2048)], "t2"),
    ],
)
def test_degraded_mixed_serves_whole_on_what_remains(machines: list[MachineLoad], expected: str) -> None:
    found = route(SMALL, machines, degraded="mixed")
    assert pair(found) == (expected, expected)
    assert "degraded" in found.why


@pytest.mark.fault("STREAM-2")
def test_one_token_needs_no_token_machine() -> None:
    one = Request(100, 1)
    assert pair(route(one, [machine("p1", 1), machine("p2")])) == ("p2", "p2")
    assert pair(route(one, [machine("p1"), machine("t1")])) == ("p1", "p1")
    assert isinstance(route(one, [machine("t1")]), NoRoute)


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        pytest.param(
            [machine("t1", kv=1000, kv_total=1024), machine("t2", 5, kv_total=1024)], "t2", id="room"
        ),
        pytest.param(
            [machine("t1", kv_total=119), machine("t2", 5, kv_total=120)], "t2", id="can ever hold it"
        ),
        pytest.param(
            [machine("t1", 3, kv=1024, kv_total=1024), machine("t2", 5, kv=1024, kv_total=1024)],
            "t1",
            id="nobody has room: the shortest queue waits",
        ),
        pytest.param(
            [machine("t1", kv=904, kv_total=1024), machine("t2", kv_total=1024)], "t1", id="just fits"
        ),
    ],
)
def test_kv_room_comes_before_the_queue_of_a_token_machine(
    machines: list[MachineLoad], expected: str
) -> None:
    assert pair(route(SMALL, [machine("p1"), *machines])) == ("p1", expected)


def test_a_prompt_machine_must_be_able_to_hold_the_prompt() -> None:
    machines = [machine("p1", kv_total=100), machine("p2", 7, kv_total=101), machine("t1")]
    assert pair(route(SMALL, machines)) == ("p2", "t1")


@pytest.mark.parametrize("degraded", ["fail", "mixed"])
def test_what_no_machine_can_hold_is_refused_with_the_numbers(degraded: Degraded) -> None:
    found = route(SMALL, [machine("p1", kv_total=64), machine("t1", kv_total=64)], degraded=degraded)
    assert isinstance(found, NoRoute)
    assert "100 prompt and 20 output tokens" in found.why


@pytest.mark.fault("LEG-2")
@pytest.mark.parametrize(
    ("avoid", "expected"),
    [
        ({"p1"}, ("p2", "t1")),
        ({"t1"}, ("p1", "t2")),
        ({"p1", "p2"}, ("p1", "t1")),
        ({"t1", "t2"}, ("p1", "t1")),
    ],
)
def test_machines_that_failed_the_request_are_the_last_choice(
    avoid: set[str], expected: tuple[str, str]
) -> None:
    machines = [machine("p1"), machine("p2", 9), machine("t1"), machine("t2", 9)]
    assert pair(route(SMALL, machines, avoid=avoid)) == expected


def test_another_revision_is_better_than_a_machine_that_failed() -> None:
    other = [machine("p2", 9, revision="2"), machine("t2", 9, revision="2")]
    machines = [machine("p1"), machine("t1"), *other]
    assert pair(route(SMALL, machines, avoid={"t1"})) == ("p2", "t2")
    assert pair(route(SMALL, machines, avoid={"p1"})) == ("p2", "t2")


def test_the_reason_names_machines_and_queues() -> None:
    found = route(SMALL, [machine("p1", 7), machine("t1", 2)])
    assert found.why == "shortest queues: prompt on p1 (7 tokens pending), tokens on t1 (2 tokens pending)"
    assert "one token" in route(Request(5, 1), [machine("p1")]).why


# ---- properties

loads = st.builds(
    MachineLoad,
    name=st.uuids().map(str),
    role=st.sampled_from(["prompt", "token", "mixed"]),
    revision=st.sampled_from(["1", "2"]),
    pending_prompt_tokens=st.integers(0, 50),
    pending_token_tokens=st.integers(0, 5),
    kv_tokens=st.integers(0, 300),
    kv_tokens_total=st.sampled_from([0, 100, 300]),
)
fleets = st.lists(loads, max_size=8, unique_by=lambda load: load.name)
requests = st.builds(Request, st.integers(1, 200), st.integers(1, 50))


@given(fleets, requests, st.sampled_from(["fail", "mixed"]))
def test_a_route_is_always_sound(machines: list[MachineLoad], request: Request, degraded: Degraded) -> None:
    found = route(request, machines, degraded=degraded)
    if isinstance(found, NoRoute):
        assert found.why
        return
    by_name = {load.name: load for load in machines}
    prompt, token = by_name[found.prompt], by_name[found.token]
    assert prompt.revision == token.revision
    for used in (prompt, token):
        assert not used.kv_tokens_total or request.prompt_tokens < used.kv_tokens_total
    if degraded == "fail":
        assert prompt.role != "token"
        assert token.role != "prompt" or request.output_tokens == 1


@given(fleets, requests, st.data())
def test_the_order_of_the_list_never_matters(
    machines: list[MachineLoad], request: Request, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(machines))
    assert route(request, machines, degraded="mixed") == route(request, shuffled, degraded="mixed")


@given(fleets, requests)
def test_no_pair_of_one_revision_has_a_shorter_prompt_queue_and_room(
    machines: list[MachineLoad], request: Request
) -> None:
    """JSQ: within the chosen revision, nobody who could run the prompt has fewer pending tokens."""
    found = route(request, machines)
    if isinstance(found, NoRoute):
        return
    chosen = next(load for load in machines if load.name == found.prompt)
    rivals = [
        load
        for load in machines
        if load.revision == chosen.revision
        and load.role != "token"
        and (not load.kv_tokens_total or request.prompt_tokens < load.kv_tokens_total)
    ]
    assert chosen.pending_tokens == min(load.pending_tokens for load in rivals)
