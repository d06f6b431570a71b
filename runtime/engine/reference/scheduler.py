"""Continuous batching over paged KV: who gets blocks, who runs next, who has to give way.

Sequences wait in order of arrival. Blocks go to the first in line; whoever does not fit holds up all behind
it, so nobody is overtaken for ever. A running sequence takes a block when it needs one; if none is
left, the youngest gives up all of its own and computes itself anew later, which changes none of its tokens.
The oldest never gives way to anyone, so there is always progress.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from runtime.engine import EngineLimits
from runtime.engine.reference.blocks import Blocks, needed
from runtime.engine.reference.sequence import Sequence
from runtime.policy.batching import Chunk, prompt_batch, token_batch
from runtime.wire import Load


@dataclass(frozen=True, slots=True)
class Turn:
    """A step: tell of `reserved`, compute so many tokens of each prompt and one of each in `tokens`."""

    reserved: tuple[Sequence, ...]
    prompts: tuple[tuple[Sequence, int], ...]
    tokens: tuple[Sequence, ...]


class Scheduler:
    """`reservable` is how many blocks may be set aside at once for KV that has not arrived; one
    reservation is always possible."""

    def __init__(self, blocks: Blocks, block_tokens: int, limits: EngineLimits, reservable: int) -> None:
        self._blocks, self._block_tokens = blocks, block_tokens
        self._limits, self._reservable = limits, reservable
        self._waiting: list[Sequence] = []
        self._prompting: dict[str, Sequence] = {}
        self._reserved: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._live: dict[str, Sequence] = {}
        self._over: dict[str, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        """Into its place in line."""
        self._live[sequence.id] = sequence
        bisect.insort(self._waiting, sequence, key=_order)

    def find(self, id: str) -> Sequence | None:
        """A sequence that isn't over."""
        return self._live.get(id)

    def knows(self, id: str) -> bool:
        """Whether the id is taken, if only by blocks that somebody else may still touch."""
        return id in self._live or id in self._over

    def turn(self) -> Turn:
        """Give out blocks and choose the next batch."""
        for sequence in sorted(self._running.values(), key=_order):
            if sequence.id in self._running:  # a preemption may have taken it meanwhile
                self._grow(sequence)
        reserved = []
        for sequence in self._admissible():
            sequence.blocks = self._blocks.take(self._need(sequence))
            self._waiting.remove(sequence)
            (self._reserved if sequence.reserving else self._prompting)[sequence.id] = sequence
            if sequence.reserving:
                sequence.written = True
                reserved.append(sequence)
        prompts = tuple(self._prompts())
        tokens = self._tokens(sum(count for _, count in prompts))
        return Turn(tuple(reserved), prompts, tuple(tokens))

    def busy(self) -> bool:
        return bool(self._running or self._prompting) or next(self._admissible(), None) is not None

    def run(self, sequence: Sequence) -> None:
        """Its KV is here; from now on it gets tokens."""
        sequence.reserving = False
        self._reserved.pop(sequence.id, None)
        self._prompting.pop(sequence.id, None)
        self._running[sequence.id] = sequence

    def end(self, sequence: Sequence) -> None:
        """It is over; its blocks are free once nobody else may touch them."""
        for group in (self._live, self._reserved, self._prompting, self._running):
            group.pop(sequence.id, None)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence.pinned:
            self._over[sequence.id] = sequence
        else:
            self._blocks.give(sequence.blocks)

    def unpin(self, id: str, *, written: bool = False, read: bool = False) -> None:
        """Nobody writes (`written`) or reads (`read`) the blocks of `id` any more."""
        sequence = self._over.get(id) or self._live.get(id)
        if sequence is None:
            return
        sequence.written = sequence.written and not written
        sequence.drained = sequence.drained or read
        if id in self._over and not sequence.pinned:
            self._blocks.give(self._over.pop(id).blocks)

    def load(self) -> Load:
        prompts = [sequence for sequence in self._waiting if not sequence.reserving]
        prompts += self._prompting.values()
        return Load(
            prompt_tokens_waiting=sum(len(prompt.tokens) - prompt.computed for prompt in prompts),
            sequences_waiting=len(self._waiting),
            sequences_running=len(self._running) + len(self._prompting),
            kv_blocks=self._blocks.total,
            kv_blocks_used=self._blocks.total - self._blocks.free,
            kv_blocks_quarantined=sum(len(over.blocks) for over in self._over.values() if over.written),
        )

    def _admissible(self) -> Iterator[Sequence]:
        """Who gets blocks now, in order of arrival; looks again after each, as the caller gives them out."""
        chosen = {chunk.id for chunk in self._prompt_batch()}
        reservable = True
        for sequence in list(self._waiting):
            if sequence.reserving:
                # One that waits for other reservations holds up reservations only.
                reservable = reservable and self._may_reserve(sequence)
            if not (reservable if sequence.reserving else sequence.id in chosen):
                continue
            if not self._fits(sequence):
                return
            yield sequence

    def _prompt_batch(self) -> tuple[Chunk, ...]:
        waiting = (sequence for sequence in self._waiting if not sequence.reserving)
        line = (sequence.as_prompt() for group in (self._prompting.values(), waiting) for sequence in group)
        limits = self._limits
        return prompt_batch(line, budget=limits.prompt_batch_tokens, sequences=limits.sequences)

    def _may_reserve(self, sequence: Sequence) -> bool:
        held = sum(len(other.blocks) for other in self._reserved.values())
        return not held or held + self._need(sequence) <= self._reservable

    def _fits(self, sequence: Sequence) -> bool:
        """Beside running sequences a newcomer that will grow leaves a block for each of them to grow into, or
        they would drive each other out."""
        need, running = self._need(sequence), len(self._running) + len(self._prompting)
        if sequence.work.phase == "prompt":
            return need <= self._blocks.free
        if not sequence.reserving and running >= self._limits.sequences:
            return False
        return need + running <= self._blocks.free

    def _need(self, sequence: Sequence) -> int:
        return needed(len(sequence.tokens), self._block_tokens)

    def _prompts(self) -> Iterator[tuple[Sequence, int]]:
        for chunk in self._prompt_batch():
            if chunk.id in self._prompting:
                yield self._prompting[chunk.id], chunk.tokens

    def _tokens(self, prompt_tokens: int) -> Iterator[Sequence]:
        residents = sorted(self._running.values(), key=_order)
        chosen = token_batch(
            [resident.as_resident() for resident in residents],
            prompt_tokens=prompt_tokens,
            budget=self._limits.prompt_batch_tokens,
            sequences=self._limits.sequences,
        )
        for resident in residents:
            resident.passed_over = 0 if resident.id in chosen else resident.passed_over + 1
            if resident.id in chosen:
                yield resident

    def _grow(self, sequence: Sequence) -> None:
        """A block for its next token, if it needs one; the youngest gives way, itself perhaps."""
        while sequence.id in self._running and len(sequence.blocks) < self._need(sequence):
            if self._blocks.free:
                sequence.blocks += self._blocks.take(1)
            else:
                self._preempt()

    def _preempt(self) -> None:
        own = [sequence for sequence in self._prompting.values() if sequence.put is None]
        victim = max([*self._running.values(), *own], key=_order)
        self._running.pop(victim.id, None)
        self._prompting.pop(victim.id, None)
        self._blocks.give(victim.blocks)
        victim.computed = victim.passed_over = 0
        self.add(victim)


def _order(sequence: Sequence) -> int:
    return sequence.order
