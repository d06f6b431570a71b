"""The engine: works in, news out, one batch per step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.engine import EngineInfo, EngineLimits, Failed, News, Reserved, Sampled, Work
from runtime.engine.reference import blas, checkpoint, puts, requests
from runtime.engine.reference.architecture import UnusableModel
from runtime.engine.reference.blocks import Blocks
from runtime.engine.reference.kv import KvCache
from runtime.engine.reference.model import Model, Segment
from runtime.engine.reference.sampling import sample
from runtime.engine.reference.scheduler import Scheduler, Turn
from runtime.engine.reference.sequence import Sequence as Running
from runtime.engine.reference.weights import Progress, Weights
from runtime.errors import EngineFailure, InvalidRequest
from runtime.kv_link.layout import Layout
from runtime.wire import FINISHED, End, Load, Token

Logits = NDArray[np.float32]
RecordLogits = Callable[[str, int, Logits], None]
"""Told (id of the work, output index, logits) before each token is chosen."""


class PoolMemory(Protocol):
    """What the engine needs of kv_link's pool: its layout, and its bytes, writable."""

    @property
    def layout(self) -> Layout: ...
    @property
    def memory(self) -> bytearray | memoryview | mmap: ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """context_tokens: an upper bound below the model's own; 0 for none. reservable: the share of the KV pool
    that may be set aside for KV that has not arrived; a mixed machine leaves some to prompts, or two of
    them could wait for each other. record_logits: for tests that compare bits."""

    limits: EngineLimits = field(default_factory=EngineLimits)
    context_tokens: int = 0
    reservable: float = 1.0
    record_logits: RecordLogits | None = None


class ReferenceEngine:
    """`runtime.engine.Engine` in NumPy, over a pool that another process may write to."""

    def __init__(self, name: str, weights: Weights, pool: PoolMemory, options: EngineOptions) -> None:
        layout, shape = pool.layout, weights.architecture
        checkpoint.check_layout(layout, weights)
        if options.context_tokens > shape.context_tokens:
            raise UnusableModel(
                f"a context of {options.context_tokens} tokens is asked for, and the model has "
                f"{shape.context_tokens}: lower engine.contextTokens or leave it out"
            )
        self._context = options.context_tokens or shape.context_tokens
        self._room = layout.blocks * layout.block_tokens
        self.info = EngineInfo(
            model=name,
            context_tokens=min(self._context, self._room),
            vocabulary=shape.vocabulary,
            end_tokens=frozenset(shape.end_tokens),
            layout=layout,
        )
        self._model = Model(
            weights,
            KvCache(layout, pool.memory),
            block_tokens=layout.block_tokens,
            context_tokens=self.info.context_tokens,
        )
        self._scheduler = Scheduler(
            Blocks(layout.blocks),
            layout.block_tokens,
            options.limits,
            reservable=int(options.reservable * layout.blocks),
        )
        self._record = options.record_logits
        self._submitted = 0
        self._news: list[News] = []

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        name: str,
        pool: PoolMemory,
        options: EngineOptions | None = None,
        cache_dir: Path | None = None,
        progress: Progress | None = None,
    ) -> "ReferenceEngine":
        """The engine over a pool whose layout came from `checkpoint.layout_of`. Prepares the weights if this
        host has not yet. Raises UnusableModel with a sentence."""
        blas.use_one_thread()
        weights = checkpoint.prepare(path, cache_dir, progress)
        return cls(name, weights, pool, options or EngineOptions())

    def close(self) -> None:
        """Let go of the pool's memory. No call may follow."""
        del self._model

    def submit(self, work: Work) -> None:
        if self._scheduler.knows(work.id):
            raise InvalidRequest(f"{work.id}: this id is in use")
        requests.check(
            work,
            prompt_tokens=self._room if work.phase == "prompt" else self._room - 1,
            context_tokens=self._context,
            vocabulary=self.info.vocabulary,
        )
        self._scheduler.add(Running.of(work, self._submitted))
        self._submitted += 1

    def cancel(self, id: str) -> None:
        if (sequence := self._scheduler.find(id)) is not None:
            puts.abort(sequence, "the request was cancelled")
            self._scheduler.end(sequence)

    def arrived(self, id: str, first: Token) -> None:
        sequence = self._scheduler.find(id)
        expected = sequence is not None and sequence.reserving and sequence.written
        self._scheduler.unpin(id, written=True)
        if sequence is None or not expected:
            return
        sequence.computed = len(sequence.tokens)
        sequence.tokens.append(first.id)
        self._scheduler.run(sequence)
        if end := self._ending(sequence):
            self._scheduler.end(sequence)
            self._news.append(Sampled(id, (), end))

    def fenced(self, id: str) -> None:
        self._scheduler.unpin(id, written=True)

    def drained(self, id: str) -> None:
        self._scheduler.unpin(id, read=True)

    def step(self) -> list[News]:
        news, self._news = self._news, []
        turn = self._scheduler.turn()
        news += [Reserved(sequence.id, tuple(sequence.blocks)) for sequence in turn.reserved]
        if turn.prompts or turn.tokens:
            news += self._compute(turn)
        return news

    def busy(self) -> bool:
        return bool(self._news) or self._scheduler.busy()

    def load(self) -> Load:
        return self._scheduler.load()

    def _compute(self, turn: Turn) -> Sequence[News]:
        rows = [*turn.prompts, *((sequence, 1) for sequence in turn.tokens)]
        puts.begin(turn.prompts)
        logits = self._model.forward(
            [_segment(sequence, count) for sequence, count in rows],
            lambda layer: puts.offer(turn.prompts, layer, self.info.layout.block_tokens),
        )
        for sequence, count in rows:
            sequence.computed += count
        done = [sequence for sequence, _ in rows if sequence.computed == len(sequence.tokens)]
        return [self._advance(sequence, row) for sequence, row in zip(done, logits, strict=True)]

    def _advance(self, sequence: Running, logits: Logits) -> News:
        """One more token for a sequence, from the logits behind its last."""
        if not np.isfinite(logits).all():
            puts.abort(sequence, "the model's answer is not finite")
            self._scheduler.end(sequence)
            message = "the model's answer is not finite: its weights or its KV-cache are damaged"
            return Failed(sequence.id, EngineFailure.code, message)
        token = self._sampled(sequence, logits)
        sequence.tokens.append(token.id)
        end = self._ending(sequence)
        if sequence.work.phase == "prompt":
            if end:
                puts.abort(sequence, FINISHED)
            else:
                puts.seal(sequence, token)
            end = end or "handoff"
        if end:
            self._scheduler.end(sequence)
        else:
            self._scheduler.run(sequence)
        return Sampled(sequence.id, (token,), end)

    def _sampled(self, sequence: Running, logits: Logits) -> Token:
        if self._record:
            self._record(sequence.id, sequence.output_tokens, logits.copy())
        return sample(
            logits,
            sequence.work.sampling,
            prompt=sequence.work.prompt,
            output=sequence.output,
            end_tokens=self.info.end_tokens,
        )

    def _ending(self, sequence: Running) -> End | None:
        # A prompt machine holds the prompt only: its pool is no bound to what a token machine goes on with.
        split = sequence.work.phase == "prompt"
        return sequence.ending(self.info.end_tokens, self._context if split else self.info.context_tokens)


def _segment(sequence: Running, count: int) -> Segment:
    end = sequence.computed + count
    return Segment(
        tokens=sequence.tokens[sequence.computed : end],
        start=sequence.computed,
        table=np.array(sequence.blocks),
        sample=end == len(sequence.tokens),
    )
