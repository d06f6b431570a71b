"""What one machine computes next (paper section IV-B).

Prompts go first come first served, together as long as they stay within a budget of prompt tokens; a prompt
over the budget goes alone, in pieces of the budget. Sequences in their token phase all join, one token
each; beside prompts they take what is left of the budget. Those left out are passed over, and whoever was
passed over too often goes before everything else, so nothing can starve them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PROMPT_BATCH_TOKENS = 2048
PASSES = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of `tokens` tokens, the first `computed` of which are done."""

    id: str
    tokens: int
    computed: int = 0


@dataclass(frozen=True, slots=True)
class Resident:
    """A sequence in its token phase, left out of the last `passed_over` batches in a row."""

    id: str
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `tokens` tokens of a prompt."""

    id: str
    tokens: int


def prompt_batch(
    prompts: Iterable[Prompt], *, budget: int = PROMPT_BATCH_TOKENS, sequences: int
) -> tuple[Chunk, ...]:
    """The prompts to compute together: a first part of `prompts`, which are in order of arrival with a begun
    one in front. Reads no more of them than it needs."""
    batch: list[Chunk] = []
    left = budget
    for prompt in prompts:
        if prompt.tokens > budget and not batch:
            return (Chunk(prompt.id, min(budget, prompt.tokens - prompt.computed)),)
        if prompt.tokens > left or len(batch) == sequences:
            break
        batch.append(Chunk(prompt.id, prompt.tokens))
        left -= prompt.tokens
    return tuple(batch)


def token_batch(
    residents: Sequence[Resident],
    *,
    prompt_tokens: int,
    budget: int = PROMPT_BATCH_TOKENS,
    sequences: int,
) -> tuple[str, ...]:
    """Who gets a token beside so many prompt tokens. `residents` are oldest first; at most `sequences` go."""
    aged = [resident for resident in residents if resident.passed_over >= PASSES]
    aged.sort(key=lambda resident: -resident.passed_over)  # stable: oldest first among equals
    fresh = [resident for resident in residents if resident.passed_over < PASSES]
    room = max(0, budget - prompt_tokens - len(aged)) if prompt_tokens else sequences
    return tuple(resident.id for resident in (aged + fresh[:room])[:sequences])
