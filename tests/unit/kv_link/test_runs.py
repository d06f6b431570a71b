"""Runs move exactly the pairs they were planned from, in as few puts as contiguity on both sides allows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv_link.runs import Run, plan


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Distinct sources to distinct targets, in any order, with stretches that run in step."""
    size = draw(st.integers(0, 30))
    sources = draw(st.lists(st.integers(0, 40), min_size=size, max_size=size, unique=True))
    shift = draw(st.integers(0, 5))
    if draw(st.booleans()):
        return [(source, source + shift) for source in sources]
    targets = draw(st.permutations(range(100, 100 + size)))
    return list(zip(sources, targets, strict=True))


def spread(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.source + i, run.target + i) for run in runs for i in range(run.length)]


@settings(deadline=None)
@given(pairs())
def test_runs_cover_the_pairs_exactly(given_pairs: list[tuple[int, int]]) -> None:
    assert sorted(spread(plan(given_pairs))) == sorted(given_pairs)


@settings(deadline=None)
@given(pairs())
def test_no_two_runs_could_be_one(given_pairs: list[tuple[int, int]]) -> None:
    runs = plan(given_pairs)
    starts = {(run.source, run.target) for run in runs}
    ends = {(run.source + run.length, run.target + run.length) for run in runs}
    assert not starts & ends


@settings(deadline=None)
@given(pairs(), st.integers(1, 5))
def test_a_bound_on_the_length_is_kept(given_pairs: list[tuple[int, int]], most: int) -> None:
    runs = plan(given_pairs, most=most)
    assert all(run.length <= most for run in runs)
    assert sorted(spread(runs)) == sorted(given_pairs)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ([4, 5, 6], [1, 2, 3], [Run(4, 1, 3)]),
        ([4, 5, 6], [1, 3, 5], [Run(4, 1, 1), Run(5, 3, 1), Run(6, 5, 1)]),  # contiguous at the source only
        ([1, 3, 5], [4, 5, 6], [Run(1, 4, 1), Run(3, 5, 1), Run(5, 6, 1)]),  # at the target only
        ([4, 5, 6], [3, 2, 1], [Run(4, 3, 1), Run(5, 2, 1), Run(6, 1, 1)]),  # against each other
        ([6, 5, 4], [3, 2, 1], [Run(4, 1, 3)]),  # both backwards
        ([9], [9], [Run(9, 9, 1)]),
        ([1, 2, 7, 8, 3], [5, 6, 1, 2, 7], [Run(1, 5, 3), Run(7, 1, 2)]),
        ([], [], []),
    ],
)
def test_coalescing(source: list[int], target: list[int], expected: list[Run]) -> None:
    assert plan(zip(source, target, strict=True)) == expected


def test_a_long_run_is_cut_at_the_bound() -> None:
    assert plan([(i, i + 10) for i in range(5)], most=2) == [Run(0, 10, 2), Run(2, 12, 2), Run(4, 14, 1)]
