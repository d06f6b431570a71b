"""One leads; another takes over only after the whole duration without a sign of life."""

from controlplane.lease import Lease
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
