"""One leads; another takes over only after the whole duration without a sign of life."""

import asyncio
from typing import Any

from controlplane.lease import Lease
from controlplane.names import Manifest
from fakekube import FakeKube

LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "splitwise-operator", "namespace": "ops", "resourceVersion": "1"},
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_the_first_leads_and_the_second_waits_for_its_silence() -> None:
    kube, clock = FakeKube(LEASE), Clock()
    one = Lease(kube, "ops", "one", seconds=15, clock=clock)
    two = Lease(kube, "ops", "two", seconds=15, clock=clock)
    assert await one.attempt()
    assert not await two.attempt()
    clock.now += 14
    assert not await two.attempt()
    assert await one.attempt()  # a sign of life
    clock.now += 14
    assert not await two.attempt()
    clock.now += 15
    assert await two.attempt()
    assert not await one.attempt()


async def test_a_released_lease_is_free_at_once() -> None:
    kube, clock = FakeKube(LEASE), Clock()
    one, two = (Lease(kube, "ops", name, clock=clock) for name in ("one", "two"))
    assert await one.attempt()
    await one.release()
    assert await two.attempt()


async def test_a_missing_lease_is_made() -> None:
    kube = FakeKube()
    assert await Lease(kube, "ops", "one").attempt()
    assert kube.objects["Lease", "ops", "splitwise-operator"]["spec"]["holderIdentity"] == "one"


class Silent(FakeKube):
    """Answers nothing."""

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> Manifest:
        return await asyncio.Future()


async def test_a_renewal_without_an_answer_is_not_waited_for() -> None:
    async with asyncio.timeout(10):
        await Lease(Silent(LEASE), "ops", "one", seconds=0.3).until_lost()


class Late(FakeKube):
    """Each write is answered only after most of the lease's time."""

    def __init__(self, clock: Clock, *objects: Manifest) -> None:
        super().__init__(*objects)
        self._clock = clock

    async def patch(self, *place: Any) -> Manifest:
        self._clock.now += 0.3
        return await super().patch(*place)


async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    clock = Clock()
    kube = Late(clock, LEASE)
    async with asyncio.timeout(10):
        await Lease(kube, "ops", "one", seconds=0.4, clock=clock).until_lost()
    assert [verb for verb, *_ in kube.written()] == ["patch"]
