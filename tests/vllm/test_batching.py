"""The paper's batches around vLLM's scheduler: whole prompts in turn, nobody paused for long, same tokens."""

import random
from collections.abc import Iterable, Iterator

import pytest

from runtime.engine import Work
from runtime.engine.vllm.bridge import Bridge, Chunk, Scheduled
from runtime.policy.batching import PASSES
from runtime.wire import Sampling
from tests.vllm.loopback import Loopback

BUDGET = 2048
ENDLESS = Sampling(400, 1, temperature=0, ignore_eos=True)
ONE = Sampling(1, 1, temperature=0)

Batch = dict[str, tuple[int, int]]
"""For each request in a batch: tokens computed before, tokens computed now."""


def ids(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 384), k=count)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every batch that vLLM computes during a test."""
    seen: list[Batch] = []
    plan = Bridge.plan

    def spy(bridge: Bridge, scheduled: Iterable[Scheduled]) -> tuple[Chunk, ...]:
        scheduled = list(scheduled)
        seen.append({item.id: (item.computed, item.count) for item in scheduled})
        return plan(bridge, scheduled)

    monkeypatch.setattr(Bridge, "plan", spy)
    return seen


@pytest.fixture(autouse=True)
def clean(loopback: Loopback) -> Iterator[None]:
    yield
    loopback.end_all()


def submit(loopback: Loopback, name: str, prompt: list[int], sampling: Sampling) -> None:
    loopback.engine.submit(Work(name, "whole", prompt, sampling))


def prompt_tokens(batch: Batch, prompts: Iterable[str]) -> dict[str, int]:
    return {id: batch[id][1] for id in prompts if id in batch}


def test_whole_prompts_in_order_up_to_the_budget(loopback: Loopback, batches: list[Batch]) -> None:
    sizes = {"a": 900, "b": 900, "c": 900, "d": 200, "e": 1000, "f": 5000, "g": 10}
    for seed, (name, size) in enumerate(sizes.items()):
        submit(loopback, name, ids(size, 1000 + seed), ONE)
    loopback.run()
    prompts = [prompt_tokens(batch, sizes) for batch in batches if batch]
    assert prompts[:2] == [{"a": 900, "b": 900}, {"c": 900, "d": 200}]
    assert prompts[2] == {"e": 1000}
    *chunks, last = prompts[3:]
    assert last == {"g": 10}
    assert all(set(chunk) == {"f"} for chunk in chunks)  # longer than the budget: alone, in pieces
    assert [chunk["f"] for chunk in chunks] == [2048, 2048, 904]


def test_prompts_go_first_and_nobody_is_paused_for_long(loopback: Loopback, batches: list[Batch]) -> None:
    running = {f"token-{place}": ids(20 + place, place) for place in range(8)}
    for name, prompt in running.items():
        submit(loopback, name, prompt, ENDLESS)
    loopback.run(lambda: all(len(loopback.told[n].tokens) > 2 for n in running if n in loopback.told) and
                 len(loopback.told) >= 8)  # fmt: skip
    del batches[:]
    prompts = [f"prompt-{place}" for place in range(14)]
    for place, name in enumerate(prompts):
        submit(loopback, name, ids(2045, 50 + place), ONE)
    loopback.run(lambda: all(name in loopback.told for name in prompts))
    with_prompts = [batch for batch in batches if prompt_tokens(batch, prompts)]
    assert len(with_prompts) == 14
    assert all(sum(prompt_tokens(batch, prompts).values()) == 2045 for batch in with_prompts)
    beside = [sum(name in batch for name in running) for batch in with_prompts]
    assert min(beside) == 3  # 2,048 - 2,045
    for name in running:
        assert longest_absence(name, with_prompts) <= PASSES
    loopback.run()
    for name, prompt in running.items():
        together = loopback.told[name].ids
        assert together == loopback.whole(prompt, ENDLESS).ids


def longest_absence(name: str, batches: list[Batch]) -> int:
    longest = current = 0
    for batch in batches:
        current = 0 if name in batch else current + 1
        longest = max(longest, current)
    return longest


def test_a_queue_keeps_its_order_when_its_head_is_cancelled(loopback: Loopback, batches: list[Batch]) -> None:
    for place, name in enumerate("abcd"):
        submit(loopback, name, ids(1500, 70 + place), ONE)
    loopback.run(lambda: "a" in loopback.told)
    loopback.engine.cancel("b")
    loopback.run()
    assert [next(iter(batch)) for batch in batches if batch] == ["a", "c", "d"]
    assert loopback.engine.load().kv_blocks_used == 0


def test_reservations_do_not_wait_behind_prompts(loopback: Loopback, batches: list[Batch]) -> None:
    for place in range(4):
        submit(loopback, f"prompt-{place}", ids(1500, 80 + place), ONE)
    loopback.engine.submit(Work("leg", "token", ids(64, 5), ENDLESS))
    loopback.run(lambda: bool([batch for batch in batches if batch]))
    assert "leg" in loopback.reserved
    assert "prompt-3" not in loopback.told
