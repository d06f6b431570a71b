"""Who may touch a block, and when it is free again."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_engines import CopyingPut, Rig, rig, work
from runtime.engine import Reserved, Sampled
from runtime.wire import FINISHED, Token

FIRST = Token(42)


@pytest.fixture
def machine(llama: Path, cache_dir: Path) -> Rig:
    return rig(llama, cache_dir, blocks=10)


def test_reserved_blocks_cover_the_prompt(machine: Rig) -> None:
    machine.submit(work(prompt=range(3, 36), phase="token")).run()
    assert machine.reserved("a") == (0, 1, 2)
    assert machine.tokens("a") == []


def test_after_arrival_the_answer_goes_on_behind_the_first_token(machine: Rig) -> None:
    machine.submit(work(phase="token", max_tokens=4)).run()
    machine.pool.memory[:] = bytes(len(machine.pool.memory))
    machine.engine.arrived("a", FIRST)
    machine.run()
    assert len(machine.tokens("a")) == 3
    assert machine.end("a") == "length"
    assert sorted(index for _, index in machine.logits) == [1, 2, 3]
    assert machine.used == 0


@pytest.mark.parametrize(("first", "end"), [(7, "stop"), (8, "length")])
def test_a_first_token_that_ends_the_answer(machine: Rig, first: int, end: str) -> None:
    machine.submit(work(phase="token", max_tokens=1, stop_token_ids=(7,))).run()
    machine.engine.arrived("a", Token(first))
    machine.run()
    assert (machine.tokens("a"), machine.end("a"), machine.used) == ([], end, 0)


@pytest.mark.fault("KV-4")
@pytest.mark.parametrize("freed_by", ["fenced", "arrived"])
def test_cancelled_blocks_wait_for_their_writer(machine: Rig, freed_by: str) -> None:
    machine.submit(work("gone", phase="token")).run()
    machine.engine.cancel("gone")
    load = machine.engine.load()
    assert (load.kv_blocks_used, load.kv_blocks_quarantined) == (2, 2)
    machine.submit(work("next", phase="token")).run()
    assert not set(machine.reserved("gone") or ()) & set(machine.reserved("next") or ())
    if freed_by == "fenced":
        machine.engine.fenced("gone")
    else:
        machine.engine.arrived("gone", FIRST)
    load = machine.engine.load()
    assert (load.kv_blocks_used, load.kv_blocks_quarantined) == (2, 0)


@pytest.mark.fault("KV-1")
def test_once_fenced_a_cancelled_reservation_is_free_at_once(machine: Rig) -> None:
    machine.submit(work(phase="token")).run()
    machine.engine.fenced("a")
    assert machine.used == 2
    machine.engine.cancel("a")
    assert machine.used == 0


def test_kv_that_arrives_behind_a_fence_is_not_believed(machine: Rig) -> None:
    machine.submit(work(phase="token")).run()
    machine.engine.fenced("a")
    machine.engine.arrived("a", FIRST)
    assert machine.run().tokens("a") == []


def test_a_reservation_that_waits_is_cancelled_without_a_trace(machine: Rig) -> None:
    machine.submit(work("big", range(3, 150), "token"), work("late", range(3, 40), "token")).run()
    assert machine.reserved("late") is None
    machine.engine.cancel("late")
    machine.engine.fenced("late")
    assert machine.engine.load().sequences_waiting == 0


def test_blocks_being_put_stay_until_drained(machine: Rig) -> None:
    put = CopyingPut(machine.pool)
    machine.submit(work(phase="prompt", put=put)).run()
    assert machine.end("a") == "handoff"
    assert put.sealed is not None
    assert put.sealed.id == machine.tokens("a")[0]
    load = machine.engine.load()
    assert (load.kv_blocks_used, load.kv_blocks_quarantined) == (2, 0)
    machine.engine.drained("a")
    assert machine.used == 0


def test_drained_before_the_end(llama: Path, cache_dir: Path) -> None:
    machine = rig(llama, cache_dir, budget=8)
    machine.submit(work(phase="prompt", put=CopyingPut(machine.pool)))
    machine.step()
    machine.engine.drained("a")
    assert machine.used == 2
    assert machine.run().used == 0


def test_a_put_that_was_given_up_never_begins(machine: Rig) -> None:
    put = CopyingPut(machine.pool)
    machine.submit(work(phase="prompt", put=put))
    machine.engine.drained("a")
    machine.run()
    assert put.begun is None
    assert machine.used == 0


@pytest.mark.parametrize(
    ("prompt_tokens", "budget"), [(40, 2048), (40, 10), (40, 16), (48, 16), (33, 32), (1, 1)]
)
def test_every_block_of_every_layer_is_offered_once(
    llama: Path, cache_dir: Path, prompt_tokens: int, budget: int
) -> None:
    machine = rig(llama, cache_dir, budget=budget)
    put = CopyingPut(machine.pool)
    machine.submit(work(prompt=range(3, 3 + prompt_tokens), phase="prompt", put=put)).run()
    blocks = -(-prompt_tokens // 16)
    offered = [(layer, first + place) for layer, first, run in put.offered for place in range(len(run))]
    assert sorted(offered) == [(layer, block) for layer in range(4) for block in range(blocks)]
    for layer in range(4):
        assert [block for at, block in offered if at == layer] == list(range(blocks))
    assert put.begun == min(prompt_tokens, budget)
    assert put.aborted is None


def test_layers_are_offered_as_they_finish(machine: Rig) -> None:
    put = CopyingPut(machine.pool)
    machine.submit(work(phase="prompt", put=put)).run()
    assert [layer for layer, _, _ in put.offered] == [0, 1, 2, 3]


def test_a_put_is_told_of_the_whole_batch(machine: Rig) -> None:
    puts = [CopyingPut(machine.pool), CopyingPut(machine.pool)]
    for at, put in enumerate(puts):
        machine.submit(work(f"w{at}", range(3, 23 + at), "prompt", put=put))
    machine.run()
    assert [put.begun for put in puts] == [41, 41]


@pytest.mark.parametrize("how", [{"max_tokens": 1}, {"stop_token_ids": tuple(range(384))}])
def test_nothing_is_handed_over_if_the_first_token_is_the_last(machine: Rig, how: dict[str, Any]) -> None:
    put = CopyingPut(machine.pool)
    machine.submit(work(phase="prompt", put=put, **how)).run()
    assert machine.end("a") == ("length" if "max_tokens" in how else "stop")
    assert put.sealed is None
    assert put.aborted == FINISHED  # no failure, so nobody computes it again
    machine.engine.drained("a")
    assert machine.used == 0


def test_a_prompt_that_is_being_put_never_gives_way(llama: Path, cache_dir: Path) -> None:
    """A running sequence that needs a block gives up its own instead."""
    machine = rig(llama, cache_dir, blocks=11, budget=16)
    machine.submit(work("old", range(3, 18), max_tokens=20)).step()
    put = CopyingPut(machine.pool)
    machine.submit(work("put", range(3, 163), "prompt", put=put))
    while machine.end("put") is None:
        machine.step()
    assert machine.engine.load().sequences_waiting == 1
    assert len(put.offered) == len(set(put.offered)) == 4 * 10
    machine.engine.drained("put")
    assert machine.run().end("old") == "length"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_cancelled_prompt_aborts_its_put(llama: Path, cache_dir: Path, steps: int) -> None:
    machine = rig(llama, cache_dir, budget=6)
    put = CopyingPut(machine.pool)
    machine.submit(work(phase="prompt", put=put))
    for _ in range(steps):
        machine.step()
    machine.engine.cancel("a")
    assert put.aborted is not None
    assert machine.used == (2 if steps else 0)
    machine.engine.drained("a")
    assert machine.used == 0
    assert machine.run().tokens("a") == []


class Chaos:
    """Does anything that a machine may do, and watches that no block has two owners."""

    def __init__(self, machine: Rig, rng: random.Random) -> None:
        self.machine, self.rng = machine, rng
        self.made = 0
        self.puts: dict[str, CopyingPut] = {}
        self.reserved: dict[str, tuple[int, ...]] = {}
        self.bytes: dict[int, bytes] = {}
        self.live: list[str] = []

    def submit(self) -> None:
        id, phase = f"w{self.made}", self.rng.choice(["whole", "prompt", "token"])
        self.made += 1
        put = CopyingPut(self.machine.pool) if phase == "prompt" else None
        prompt = [self.rng.randrange(384) for _ in range(self.rng.randint(1, 70))]
        how = {"max_tokens": self.rng.randint(1, 40), "temperature": 1.0, "seed": self.made}
        self.machine.submit(work(id, prompt, phase, put=put, **how))
        self.live.append(id)
        if put:
            self.puts[id] = put

    def cancel(self) -> None:
        if self.live:
            self.machine.engine.cancel(self.live.pop(self.rng.randrange(len(self.live))))

    def fence(self) -> None:
        if id := self._any(self.reserved):
            self._let_go(id)
            self.machine.engine.fenced(id)
            self.machine.engine.cancel(id)

    def arrive(self) -> None:
        if id := self._any(self.reserved):
            for block in self._let_go(id):
                for layer in range(4):
                    self.machine.pool.block(layer, block)[:] = bytes(self.machine.pool.layout.block_bytes)
            self.machine.engine.arrived(id, Token(self.rng.randrange(384)))

    def drain(self) -> None:
        if (id := self._any(self.puts)) and (self.puts[id].sealed or self.puts[id].aborted):
            self.machine.engine.drained(id)
            del self.puts[id]

    def step(self) -> None:
        for news in self.machine.step():
            if isinstance(news, Reserved):
                assert not set(news.blocks) & set(self.bytes), "blocks given away while a peer may write them"
                assert not set(news.blocks) & self._read(), "blocks given away while a put reads them"
                self.reserved[news.id] = news.blocks
                self.bytes |= {block: self._content(block) for block in news.blocks}
            elif isinstance(news, Sampled) and news.end and news.id in self.live:
                self.live.remove(news.id)
        for block, content in self.bytes.items():
            assert self._content(block) == content, "a block was written that only a peer may write"
        assert not self._read() & set(self.bytes)

    def settle(self) -> None:
        """Everything comes to its end."""
        for id in self.live:
            self.machine.engine.cancel(id)
        for id in self.reserved:
            self.machine.engine.fenced(id)
        for id in self.puts:
            self.machine.engine.drained(id)
        self.machine.run()

    def _read(self) -> set[int]:
        return {block for put in self.puts.values() for _, _, blocks in put.offered for block in blocks}

    def _content(self, block: int) -> bytes:
        return b"".join(bytes(self.machine.pool.block(layer, block)) for layer in range(4))

    def _let_go(self, id: str) -> tuple[int, ...]:
        blocks = self.reserved.pop(id)
        for block in blocks:
            del self.bytes[block]
        return blocks

    def _any(self, ids: Iterable[str]) -> str | None:
        return self.rng.choice(sorted(ids)) if list(ids) else None


@pytest.mark.fault("KV-6")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(5, 14), st.sampled_from([16, 2048]), st.sampled_from([0.5, 1.0]))
def test_no_block_is_lost_or_shared_whatever_happens(
    llama: Path, cache_dir: Path, seed: int, blocks: int, budget: int, reservable: float
) -> None:
    machine = rig(llama, cache_dir, blocks=blocks, budget=budget, reservable=reservable)
    rng = random.Random(seed)
    chaos = Chaos(machine, rng)
    acts: list[Callable[[], None]] = [chaos.submit, chaos.cancel, chaos.fence, chaos.arrive, chaos.drain]
    for _ in range(80):
        rng.choice(acts + 5 * [chaos.step])()
    chaos.settle()
    load = machine.engine.load()
    assert (load.kv_blocks_used, load.kv_blocks_quarantined, load.sequences_waiting) == (0, 0, 0)
