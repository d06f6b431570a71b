"""One pass at a time per key, none lost, failures repeated."""

import asyncio

import pytest

from controlplane import workqueue
from controlplane.workqueue import WorkQueue


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_wakes_during_a_pass_make_one_more() -> None:
    gate, begun = asyncio.Event(), 0

    async def work(key: str) -> None:
        nonlocal begun
        begun += 1
        await gate.wait()

    queue = WorkQueue[str](work)
    queue.wake("a")
    await settle()
    for _ in range(5):
        queue.wake("a")
    await settle()
    assert begun == 1
    gate.set()
    await settle()
    assert begun == 2
    assert queue.idle


async def test_keys_run_side_by_side_up_to_the_limit() -> None:
    gate, running = asyncio.Event(), 0

    async def work(key: int) -> None:
        nonlocal running
        running += 1
        await gate.wait()

    queue = WorkQueue[int](work, workers=2)
    for key in range(5):
        queue.wake(key)
    await settle()
    assert running == 2
    gate.set()
    await queue.drain()
    assert running == 5


async def test_a_failure_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "FIRST_RETRY_SECONDS", 0.001)
    done = asyncio.Event()
    tries = 0

    async def work(key: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise ValueError("not yet")
        done.set()

    queue = WorkQueue[str](work)
    queue.wake("a")
    async with asyncio.timeout(10):
        await done.wait()
    assert tries == 4
    await queue.drain()


async def test_a_pass_may_ask_for_the_next() -> None:
    done = asyncio.Event()
    passes = 0

    async def work(key: str) -> float | None:
        nonlocal passes
        passes += 1
        if passes == 3:
            done.set()
            return None
        return 0.001

    queue = WorkQueue[str](work)
    queue.wake("a")
    async with asyncio.timeout(10):
        await done.wait()
    await queue.drain()


async def test_nothing_starts_after_the_drain() -> None:
    passes: list[str] = []

    async def work(key: str) -> float:
        passes.append(key)
        return 0.0

    queue = WorkQueue[str](work)
    queue.wake("a")
    await queue.drain()
    queue.wake("b")
    await settle()
    assert passes == ["a"]


class Clock:
    """The loop's clock, turned by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def turn(self, seconds: float) -> None:
        """Timers of the real loop follow its clock."""
        self.now += seconds
        await settle()


async def test_wakes_within_the_time_share_a_pass_and_an_urgent_one_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, passes = Clock(monkeypatch), 0

    async def work(key: str) -> None:
        nonlocal passes
        passes += 1

    queue = WorkQueue[str](work)
    for _ in range(3):
        queue.wake("a", 0.2)
        await clock.turn(0.05)
    assert passes == 0
    await clock.turn(0.06)  # counted from the first
    assert passes == 1
    queue.wake("a", 0.2)
    queue.wake("a")
    await settle()
    assert passes == 2
    await clock.turn(1.0)
    assert passes == 2
    assert queue.idle


async def test_a_wake_during_a_pass_is_served_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gate, begun = Clock(monkeypatch), asyncio.Event(), 0

    async def work(key: str) -> float:
        nonlocal begun
        begun += 1
        await gate.wait()
        return 60.0

    queue = WorkQueue[str](work)
    queue.wake("a")
    await settle()
    queue.wake("a", 0.2)
    gate.set()
    await settle()
    assert begun == 1
    await clock.turn(0.25)
    assert begun == 2
    queue.wake("a", 0.2)  # sooner than the look that the pass asked for
    await clock.turn(0.25)
    assert begun == 3
    await queue.drain()


async def test_abandoned_passes_end_where_they_are() -> None:
    begun, ended = asyncio.Event(), False

    async def work(key: str) -> None:
        nonlocal ended
        begun.set()
        await asyncio.Future()
        ended = True

    queue = WorkQueue(work)
    queue.wake("a")
    async with asyncio.timeout(10):
        await begun.wait()
        queue.abandon()
        await queue.drain()
    assert not ended
