"""Reference engines over plain memory, and a KV link that copies within one process.

Pools start filled with NaN, so whatever reads a byte that nobody wrote is found out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.engine import EngineLimits, Failed, News, Reserved, Sampled, Work
from runtime.engine.reference import checkpoint
from runtime.engine.reference.engine import EngineOptions, ReferenceEngine
from runtime.kv_link.layout import Layout
from runtime.wire import Sampling, Token

Logits = NDArray[np.float32]


@dataclass
class HeapPool:
    layout: Layout
    memory: bytearray

    def block(self, layer: int, block: int) -> memoryview:
        """The bytes of a block of a layer."""
        start = self.layout.offset(layer, block)
        return memoryview(self.memory)[start : start + self.layout.block_bytes]


@dataclass
class Rig:
    """An engine, its pool, and everything that it said."""

    engine: ReferenceEngine
    pool: HeapPool
    logits: dict[tuple[str, int], Logits]
    news: list[News] = field(default_factory=list)

    def submit(self, *works: Work) -> "Rig":
        for work in works:
            self.engine.submit(work)
        return self

    def step(self) -> list[News]:
        said = self.engine.step()
        self.news += said
        return said

    def run(self, *, steps: int = 5000, during: Callable[[], None] = lambda: None) -> "Rig":
        """Step until there is nothing to do, calling `during` after each step."""
        for _ in range(steps):
            if not self.engine.busy():
                return self
            self.step()
            during()
        raise AssertionError(f"still busy after {steps} steps")

    def tokens(self, id: str) -> list[int]:
        return [
            token.id
            for news in self.news
            if isinstance(news, Sampled) and news.id == id
            for token in news.tokens
        ]

    def end(self, id: str) -> str | None:
        ends = [news.end for news in self.news if isinstance(news, Sampled) and news.id == id and news.end]
        assert len(ends) <= 1, f"{id} ended twice"
        return ends[0] if ends else None

    def reserved(self, id: str) -> tuple[int, ...] | None:
        found = [news.blocks for news in self.news if isinstance(news, Reserved) and news.id == id]
        assert len(found) <= 1, f"{id} reserved twice"
        return found[0] if found else None

    def failed(self, id: str) -> Failed | None:
        return next((news for news in self.news if isinstance(news, Failed) and news.id == id), None)

    @property
    def used(self) -> int:
        return self.engine.load().kv_blocks_used


def rig(
    model: Path,
    cache_dir: Path,
    *,
    blocks: int = 256,
    block_tokens: int = 16,
    budget: int = 2048,
    sequences: int = 64,
    **options: Any,
) -> Rig:
    """An engine with a pool of so many blocks."""
    probe = _layout(model, cache_dir, 2**30, block_tokens)
    layout = _layout(model, cache_dir, blocks * probe.layers * probe.block_bytes, block_tokens)
    pool = HeapPool(layout, bytearray(b"\xff") * layout.total_bytes)
    logits: dict[tuple[str, int], Logits] = {}

    def record(id: str, index: int, row: Logits) -> None:
        assert (id, index) not in logits, f"{id} computed token {index} twice"
        logits[id, index] = row

    chosen = EngineOptions(limits=EngineLimits(budget, sequences), record_logits=record, **options)
    engine = ReferenceEngine.open(model, name="tiny", pool=pool, options=chosen, cache_dir=cache_dir)
    return Rig(engine, pool, logits)


def _layout(model: Path, cache_dir: Path, memory_bytes: int, block_tokens: int) -> Layout:
    return checkpoint.layout_of(
        model,
        name="tiny",
        revision="1",
        memory_bytes=memory_bytes,
        block_tokens=block_tokens,
        cache_dir=cache_dir,
    )


def work(id: str = "a", prompt: Iterable[int] = range(3, 23), phase: Any = "whole", **sampling: Any) -> Work:
    """A work that takes only what the test is about; `generated` and `put` are passed on."""
    rest = {key: sampling.pop(key) for key in ("generated", "put") if key in sampling}
    settings = {"max_tokens": 8, "seed": 1, "temperature": 0.0, "ignore_eos": True} | sampling
    return Work(id, phase, list(prompt), Sampling(**settings), **rest)


@dataclass
class CopyingPut:
    """A LayerPut that copies blocks at once, and checks that it is called in the right order.

    `target` and `into`: where they go; without them it only listens."""

    source: HeapPool
    target: HeapPool | None = None
    into: Sequence[int] = ()
    begun: int | None = None
    offered: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    sealed: Token | None = None
    aborted: str | None = None

    def begin(self, batch_tokens: int) -> None:
        assert self.begun is None, "begun twice"
        self.begun = batch_tokens

    def layer(self, layer: int, first: int, blocks: Sequence[int]) -> None:
        assert self.begun is not None, "a layer before begin"
        assert self.sealed is None, "a layer after seal"
        self.offered.append((layer, first, tuple(blocks)))
        for place, block in enumerate(blocks, start=first):
            if self.target is not None:
                self.target.block(layer, self.into[place])[:] = self.source.block(layer, block)

    def seal(self, first_token: Token) -> None:
        assert self.sealed is None, "sealed twice"
        self.sealed = first_token

    def abort(self, reason: str) -> None:
        self.aborted = self.aborted or reason


def split(prompt_rig: Rig, token_rig: Rig, whole: Work, *, spoil: Callable[[], None] = lambda: None) -> None:
    """Run a work's two legs, the token leg to its end. `spoil` is called when the KV is there."""
    token_rig.submit(Work(whole.id, "token", whole.prompt, whole.sampling, whole.generated)).run()
    into = token_rig.reserved(whole.id)
    assert into is not None, "no room for the reservation"
    put = CopyingPut(prompt_rig.pool, token_rig.pool, into)
    prompt_rig.submit(Work(whole.id, "prompt", whole.prompt, whole.sampling, whole.generated, put)).run()
    prompt_rig.engine.drained(whole.id)
    if put.sealed is None:
        token_rig.engine.cancel(whole.id)
        token_rig.engine.fenced(whole.id)
        return
    spoil()
    token_rig.engine.arrived(whole.id, put.sealed)
    token_rig.run()
