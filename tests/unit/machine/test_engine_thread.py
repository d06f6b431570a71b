"""The engine's thread: calls in order, news on the loop, one word when the engine breaks."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime.engine import Failed, News, Sampled, Work
from runtime.engine.thread import EngineThread
from runtime.errors import InvalidRequest
from runtime.wire import Load, Sampling, Token


class Scripted:
    """An engine that gives one token per step to each work, and writes down what it is told."""

    info: Any = None

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.works: list[str] = []
        self.threads: set[str] = set()
        self.breaks = False

    def submit(self, work: Work) -> None:
        if not work.prompt:
            raise InvalidRequest("an empty prompt")
        self.works.append(work.id)

    def cancel(self, id: str) -> None:
        self.calls.append(("cancel", id))

    def arrived(self, id: str, first: Token) -> None:
        self.calls.append(("arrived", id))

    def fenced(self, id: str) -> None:
        self.calls.append(("fenced", id))

    def drained(self, id: str) -> None:
        self.calls.append(("drained", id))

    def step(self) -> list[News]:
        self.threads.add(threading.current_thread().name)
        if self.breaks:
            raise RuntimeError("no memory left")
        works, self.works = self.works, []
        return [Sampled(id, (Token(1),), "stop") for id in works]

    def busy(self) -> bool:
        return bool(self.works) or self.breaks

    def close(self) -> None:
        self.calls.append(("close", threading.current_thread().name))

    def load(self) -> Load:
        return Load(sequences_running=len(self.works))


class Place:
    def __init__(self) -> None:
        self.engine = Scripted()
        self.news: asyncio.Queue[News] = asyncio.Queue()
        self.broken: asyncio.Queue[Exception] = asyncio.Queue()
        self.loads: asyncio.Queue[Load] = asyncio.Queue()
        self.thread = EngineThread(self.engine, self._heard, self.broken.put_nowait)

    def _heard(self, news: list[News], load: Load, seconds: float | None) -> None:
        self.loads.put_nowait(load)
        for item in news:
            self.news.put_nowait(item)

    async def next(self) -> News:
        return await asyncio.wait_for(self.news.get(), 5)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    here = Place()
    yield here
    await here.thread.stop()


def work(id: str, prompt: list[int]) -> Work:
    return Work(id, "whole", prompt, Sampling(1, 1))


async def test_news_come_from_the_engines_own_thread_to_the_loop(place: Place) -> None:
    place.thread.submit(work("a", [1]))
    news = await place.next()
    assert (news.id, place.engine.threads) == ("a", {"engine"})


async def test_a_refused_work_comes_back_as_failed_and_others_go_on(place: Place) -> None:
    place.thread.submit(work("bad", []))
    place.thread.submit(work("good", [1]))
    assert await place.next() == Failed("bad", "invalid_request", "an empty prompt")
    assert isinstance(await place.next(), Sampled)


async def test_calls_keep_their_order(place: Place) -> None:
    place.thread.cancel("a")
    place.thread.fenced("a")
    place.thread.drained("b")
    place.thread.arrived("c", Token(1))
    place.thread.submit(work("last", [1]))
    await place.next()
    assert place.engine.calls == [("cancel", "a"), ("fenced", "a"), ("drained", "b"), ("arrived", "c")]


async def test_blocks_given_back_between_steps_are_reported(place: Place) -> None:
    place.thread.drained("a")
    assert await asyncio.wait_for(place.loads.get(), 5) == Load()
    assert place.engine.threads == set()


async def test_stopping_closes_the_engine_on_its_own_thread(place: Place) -> None:
    await place.thread.stop()
    assert place.engine.calls == [("close", "engine")]


async def test_an_idle_engine_is_not_stepped(place: Place) -> None:
    place.thread.cancel("nobody")
    place.thread.submit(work("bad", []))
    await place.next()
    assert place.engine.threads == set()


async def test_an_exception_in_a_step_is_told_once_and_ends_the_thread(place: Place) -> None:
    place.engine.breaks = True
    place.thread.cancel("wake up")
    error = await asyncio.wait_for(place.broken.get(), 5)
    assert str(error) == "no memory left"
    await place.thread.stop()
    assert place.broken.empty()
