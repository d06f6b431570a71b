"""The link Secret over time: which step follows, what it holds, and that no two pods refuse each other."""

import base64
import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.api import seconds
from controlplane.errors import ApiError, Conflict
from controlplane.names import LINK_SINCE, LINK_STEP, Manifest
from controlplane.reconcile import World, reconcile
from controlplane.settings import OperatorSettings
from controlplane.trust import Step, Trust, stepped, trust_of
from deployments import deployment
from fakekube import FakeKube, come_up

KEY = ("default", "tiny")
START = datetime(2026, 1, 1, tzinfo=UTC)
PERIOD, SETTLING = timedelta(days=30), timedelta(minutes=10)
OLD, NEW = "o" * 40, "n" * 40


@pytest.mark.parametrize(
    ("step", "keys", "then", "left"),
    [
        ("settled", [OLD], "announced", (OLD, NEW)),
        ("announced", [OLD, NEW], "adopted", (NEW, OLD)),
        ("adopted", [NEW, OLD], "settled", (NEW,)),
        ("announced", [OLD], "announced", (OLD, NEW)),
        ("adopted", [OLD], "announced", (OLD, NEW)),
        ("settled", [], "settled", (NEW,)),
        ("adopted", [], "settled", (NEW,)),
    ],
)
def test_each_step_has_one_that_follows(step: Step, keys: list[str], then: str, left: tuple[str]) -> None:
    assert stepped(step, keys, NEW) == (then, left)


@pytest.mark.parametrize(
    ("step", "age", "due"),
    [
        ("settled", PERIOD - timedelta(seconds=1), False),
        ("settled", PERIOD, True),
        ("announced", SETTLING - timedelta(seconds=1), False),
        ("announced", SETTLING, True),
        ("adopted", SETTLING - timedelta(seconds=1), False),
        ("adopted", SETTLING, True),
    ],
)
def test_a_step_is_due_by_its_age(step: Step, age: timedelta, due: bool) -> None:
    assert Trust(step, START).due(START + age, period=PERIOD, settling=SETTLING) is due


def test_without_a_period_no_rotation_begins_and_a_begun_one_ends() -> None:
    late = START + timedelta(days=1000)
    never = timedelta(0)
    assert not Trust("settled", START).due(late, period=never, settling=SETTLING)
    assert Trust("announced", START).due(late, period=never, settling=SETTLING)


@pytest.mark.parametrize(
    "annotations", [None, {}, {LINK_STEP: "adopted"}, {LINK_STEP: "adopted", LINK_SINCE: "yesterday"}]
)
def test_a_secret_of_an_earlier_release_is_settled_since_it_was_made(annotations: Any) -> None:
    metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations}
    assert trust_of({"metadata": metadata}) == Trust("settled", START)


def test_a_walk_through_two_rotations_in_which_no_pair_of_pods_refuses() -> None:
    """Every pod has the file that the Secret held up to nearly a settling time ago, each another one."""
    chance = random.Random(7)
    lags = [chance.uniform(0.0, 0.99) * SETTLING for _ in range(12)] + [timedelta(0), 0.99 * SETTLING]
    fresh = (f"key {number}".ljust(40, ".") for number in itertools.count(1))
    now, trust = START, Trust("settled", START)
    keys: tuple[str, ...] = (next(fresh),)
    history = [(now, keys)]
    shown: set[str] = set()
    while now < START + 2 * PERIOD + 8 * SETTLING:
        now += SETTLING / 7 if trust.step != "settled" else PERIOD / 40
        if trust.due(now, period=PERIOD, settling=SETTLING):
            step, keys = stepped(trust.step, keys, next(fresh))
            trust = Trust(step, now)
            history.append((now, keys))
        files = [_file(history, now - lag) for lag in lags]
        for listener, caller in itertools.product(files, repeat=2):
            assert listener[0] in caller, (now, listener, caller)
        shown |= {file[0] for file in files}
    assert len(shown) == 3  # the first key and those of two rotations
    assert len(keys) == 1


def _file(history: list[tuple[datetime, tuple[str, ...]]], at: datetime) -> tuple[str, ...]:
    """What the Secret held then; the first keys before that."""
    return next((keys for since, keys in reversed(history) if since <= at), history[0][1])


# ---- in a pass


class Clock:
    """What passes take for the time and for random keys."""

    def __init__(self) -> None:
        self.now = START
        self._numbers = itertools.count(1)

    def key(self) -> str:
        return f"key {next(self._numbers)}".ljust(40, ".")

    def world(self, kube: FakeKube, **settings: Any) -> World:
        return World(kube, OperatorSettings(**settings), now=lambda: self.now, random_secret=self.key)


def keys(secret: Manifest) -> list[str]:
    return [line.rstrip(".") for line in base64.b64decode(secret["data"]["secret"]).decode().split("\n")]


def link(kube: FakeKube) -> Manifest:
    return kube.objects["Secret", "default", "tiny-link"]


async def still(kube: FakeKube, world: World) -> None:
    for _ in range(3):
        await reconcile(KEY, world)
        come_up(kube)
    await reconcile(KEY, world)
    kube.written()


def document() -> Manifest:
    return deployment(
        engine={"name": "reference"}, model={"name": "tiny", "source": {"path": "/models/tiny"}}
    )


async def test_passes_replace_the_key_step_by_step_and_write_nothing_else() -> None:
    kube, clock = FakeKube(document()), Clock()
    world = clock.world(kube)
    await still(kube, world)
    assert keys(link(kube)) == ["key 1"]
    settings = world.settings
    waits = [seconds(settings.link_rotation), *[seconds(settings.link_settling)] * 2]
    expected = [["key 1", "key 2"], ["key 2", "key 1"], ["key 2"]]
    for wait, wanted in zip(waits, expected, strict=True):
        before = keys(link(kube))
        clock.now += timedelta(seconds=wait - 1)
        await reconcile(KEY, world)
        assert keys(link(kube)) == before
        assert kube.written() == []
        clock.now += timedelta(seconds=1)
        await reconcile(KEY, world)
        assert keys(link(kube)) == wanted
        assert kube.written() == [("patch", "Secret", "tiny-link")]
        await reconcile(KEY, world)
        assert kube.written() == []


async def test_a_key_that_somebody_wrote_is_kept_until_its_successor_is_known() -> None:
    kube, clock = FakeKube(document()), Clock()
    world = clock.world(kube)
    await still(kube, world)
    mine = base64.b64encode(OLD.encode()).decode()
    link(kube)["data"] = {"secret": mine}
    clock.now += PERIOD
    await reconcile(KEY, world)
    assert keys(link(kube)) == [OLD, "key 2"]


@pytest.mark.parametrize("data", [{}, {"secret": "%%%"}, {"secret": base64.b64encode(b"tiny").decode()}])
async def test_a_secret_without_a_usable_key_gets_one(data: Manifest) -> None:
    kube, clock = FakeKube(document()), Clock()
    world = clock.world(kube)
    await still(kube, world)
    link(kube)["data"] = data
    clock.now += PERIOD
    await reconcile(KEY, world)
    assert keys(link(kube)) == ["key 2"]


async def test_a_patch_means_the_secret_that_was_read() -> None:
    kube, clock = FakeKube(document()), Clock()
    world = clock.world(kube)
    await still(kube, world)
    link(kube)["metadata"]["resourceVersion"] = "17"
    sent: list[Manifest] = []

    async def patch(kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        sent.append(body)
        raise Conflict(409, "somebody was faster")

    clock.now += PERIOD
    kube.patch = patch  # type: ignore[method-assign]
    await reconcile(KEY, replace(world, kube=kube))
    assert [body["metadata"]["resourceVersion"] for body in sent] == ["17"]
    assert keys(link(kube)) == ["key 1"]


async def test_a_refused_secret_is_told_and_tried_again() -> None:
    kube, clock = FakeKube(document()), Clock()
    world = clock.world(kube)
    kube.fail["Secret"] = ApiError(403, "secrets is forbidden")
    with pytest.raises(ApiError, match="forbidden"):
        await reconcile(KEY, world)
    await reconcile(KEY, world)
    assert keys(link(kube)) == ["key 2"]


async def test_no_template_depends_on_the_keys() -> None:
    kube, clock = FakeKube(document()), Clock()
    world = clock.world(kube)
    await still(kube, world)
    workloads = [key for key in kube.objects if key[0] in ("StatefulSet", "Deployment")]
    templates = {key: kube.objects[key]["spec"]["template"] for key in workloads}
    link(kube)["data"] = {"secret": base64.b64encode(NEW.encode()).decode()}
    await reconcile(KEY, world)
    assert templates == {key: kube.objects[key]["spec"]["template"] for key in templates}
    assert len(templates) == 3
