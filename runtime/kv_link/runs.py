"""Runs: neighbouring blocks moved by one put.

Each machine places blocks as it likes, so a run must be contiguous on both sides (the paper coalesces
in the same way, section V-A). The pairs always come explicitly; nothing is ever "the first n blocks".
"""

from collections.abc import Iterable
from typing import NamedTuple


class Run(NamedTuple):
    """`length` blocks from `source` on, to go to `target` and its successors at the peer."""

    source: int
    target: int
    length: int


def plan(pairs: Iterable[tuple[int, int]], *, most: int | None = None) -> list[Run]:
    """Merge (source block, target block) pairs into runs of at most `most` blocks.

    The order of the pairs does not matter: a layer's blocks may land in any order. Targets are distinct."""
    runs: list[Run] = []
    for source, target in sorted(pairs):
        if runs:
            last = runs[-1]
            follows = source == last.source + last.length and target == last.target + last.length
            if follows and (most is None or last.length < most):
                runs[-1] = Run(last.source, last.target, last.length + 1)
                continue
        runs.append(Run(source, target, 1))
    return runs
