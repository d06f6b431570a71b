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
