"""Batches of one machine: first come first served under a budget, and nobody starves."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.policy.batching import PASSES, Chunk, Prompt, Resident, prompt_batch, token_batch


def batch(*lengths: int | tuple[int, int], budget: int = 10, sequences: int = 8) -> list[tuple[str, int]]:
    prompts = [
        Prompt(str(at), *length) if isinstance(length, tuple) else Prompt(str(at), length)
        for at, length in enumerate(lengths)
    ]
    return [(chunk.id, chunk.tokens) for chunk in prompt_batch(prompts, budget=budget, sequences=sequences)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((), []),
        ((10,), [("0", 10)]),
        ((4, 6), [("0", 4), ("1", 6)]),
        ((4, 7, 1), [("0", 4)]),  # nobody is overtaken
        ((11, 1), [("0", 10)]),  # over the budget: alone, in pieces
        (((11, 10), 1), [("0", 1)]),  # its last piece too
        (((25, 10), 1), [("0", 10)]),
        ((1, 11), [("0", 1)]),  # the long one waits until it is first
    ],
)
def test_prompts_share_the_budget(
    lengths: tuple[int | tuple[int, int], ...], expected: list[tuple[str, int]]
) -> None:
    assert batch(*lengths) == expected


def test_the_budget_of_the_paper() -> None:
    prompts = [Prompt("a", 2000), Prompt("b", 48), Prompt("c", 1)]
    assert prompt_batch(prompts, sequences=8) == (Chunk("a", 2000), Chunk("b", 48))


def test_at_most_so_many_sequences() -> None:
    assert batch(1, 1, 1, sequences=2) == [("0", 1), ("1", 1)]


def test_no_more_is_read_than_needed() -> None:
    def endless() -> Iterator[Prompt]:
        while True:
            yield Prompt("x", 3)

    assert len(prompt_batch(endless(), budget=10, sequences=100)) == 3


def tokens(*passed: int, prompt_tokens: int = 0, budget: int = 10, sequences: int = 8) -> list[int]:
    residents = [Resident(str(at), times) for at, times in enumerate(passed)]
    chosen = token_batch(residents, prompt_tokens=prompt_tokens, budget=budget, sequences=sequences)
    return [int(id) for id in chosen]


def test_without_prompts_all_residents_go_on() -> None:
    assert tokens(0, 0, 0, budget=1) == [0, 1, 2]


def test_oldest_first_when_there_are_too_many() -> None:
    assert tokens(0, 0, 0, sequences=2) == [0, 1]


def test_beside_prompts_they_take_what_is_left_of_the_budget() -> None:
    assert tokens(0, 0, 0, prompt_tokens=8) == [0, 1]
    assert tokens(0, 0, 0, prompt_tokens=10) == []


def test_passed_over_too_often_goes_first() -> None:
    assert tokens(0, PASSES, PASSES - 1, prompt_tokens=10) == [1]
    assert tokens(0, 0, PASSES, sequences=2) == [2, 0]
    assert tokens(0, 0, PASSES, prompt_tokens=9) == [2]
    assert tokens(PASSES, PASSES + 1, PASSES, prompt_tokens=10, sequences=2) == [1, 0]


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(1, 20), st.integers(1, 5))
def test_every_prompt_is_computed_once_in_order(lengths: list[int], budget: int, sequences: int) -> None:
    waiting = [Prompt(str(at), length) for at, length in enumerate(lengths)]
    finished: list[str] = []
    while waiting:
        chosen = prompt_batch(waiting, budget=budget, sequences=sequences)
        assert 0 < sum(chunk.tokens for chunk in chosen) <= budget
        assert len(chosen) <= sequences
        assert len(chosen) == 1 or all(waiting[at].tokens <= budget for at in range(len(chosen)))
        assert [chunk.id for chunk in chosen] == [prompt.id for prompt in waiting[: len(chosen)]]
        moved = [
            Prompt(prompt.id, prompt.tokens, prompt.computed + chunk.tokens)
            for prompt, chunk in zip(waiting, chosen, strict=False)
        ]
        assert all(prompt.computed <= prompt.tokens for prompt in moved)
        finished += [prompt.id for prompt in moved if prompt.computed == prompt.tokens]
        waiting = [prompt for prompt in moved if prompt.computed < prompt.tokens] + waiting[len(chosen) :]
    assert finished == [str(at) for at in range(len(lengths))]


@given(st.integers(1, 20), st.integers(1, 6), st.lists(st.integers(0, 10), min_size=50, max_size=50))
def test_no_resident_starves(residents: int, sequences: int, prompts: list[int]) -> None:
    """Whatever prompts do, everyone gets a token within a bounded number of batches."""
    passed = [0] * residents
    for prompt_tokens in prompts:
        chosen = set(tokens(*passed, prompt_tokens=prompt_tokens, sequences=sequences))
        passed = [0 if at in chosen else passed[at] + 1 for at in range(residents)]
        assert max(passed) <= PASSES + -(-residents // sequences)
