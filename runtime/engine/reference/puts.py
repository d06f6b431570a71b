"""How a prompt's KV leaves: the engine's calls on the `LayerPut` of a sequence, in their one right order."""

from runtime.engine.reference.sequence import Sequence
from runtime.wire import Token

Prompts = tuple[tuple[Sequence, int], ...]
"""Sequences, and how many tokens of each the batch computes."""


def begin(prompts: Prompts) -> None:
    """Before a batch is computed."""
    batch_tokens = sum(count for _, count in prompts)
    for sequence, _ in prompts:
        if sequence.put is not None and not sequence.begun and not sequence.drained:
            sequence.begun = True
            sequence.put.begin(batch_tokens)


def offer(prompts: Prompts, layer: int, block_tokens: int) -> None:
    """A layer of the batch is computed: offer the blocks that it filled. A block that the next chunk goes on
    filling is left for that one."""
    for sequence, count in prompts:
        if sequence.put is None or not sequence.begun:
            continue
        end = sequence.computed + count
        first, last = sequence.computed // block_tokens, end // block_tokens
        if end == len(sequence.tokens):
            last = len(sequence.blocks)
        if first < last:
            sequence.put.layer(layer, first, sequence.blocks[first:last])


def seal(sequence: Sequence, first: Token) -> None:
    """The first token is known and the request goes on elsewhere."""
    if sequence.put is not None and sequence.begun:
        sequence.put.seal(first)


def abort(sequence: Sequence, reason: str) -> None:
    """The KV is not wanted any more."""
    if sequence.put is not None:
        sequence.put.abort(reason)
