"""From logits to tokens."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime.engine.reference.sampling import sample
from runtime.wire import Sampling, Token

LOGITS = [0.0, 3.0, 1.0, 3.0, -2.0, 2.0]
END = frozenset({1})


def pick(
    logits: list[float] | NDArray[np.float32] = LOGITS,
    *,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    **sampling: Any,
) -> Token:
    row = np.array(logits, np.float32)
    how = Sampling(**({"max_tokens": 99, "seed": 5, "temperature": 0.0} | sampling))
    return sample(row, how, prompt=prompt, output=output, end_tokens=END)


@pytest.mark.parametrize(
    ("sampling", "output", "expected"),
    [
        ({}, (), 1),  # a tie: the lowest id
        ({"logit_bias": {4: 5.5}}, (), 4),
        ({"logit_bias": {1: -0.5}}, (), 3),
        ({"logit_bias": {1: -100, 3: -100}}, (), 5),
        ({"presence_penalty": 0.5}, (1,), 3),
        ({"presence_penalty": 1.5}, (1, 3), 5),
        ({"presence_penalty": -4.0}, (5,), 5),
        ({"frequency_penalty": 0.5}, (1, 3, 3), 1),
        ({"frequency_penalty": 0.6}, (1, 1, 3, 3), 5),
        ({"repetition_penalty": 1.2}, (1,), 3),
        ({"repetition_penalty": 2.0}, (1, 3), 5),
        ({"min_tokens": 1}, (), 3),  # the end token is banned
        ({"min_tokens": 1}, (0,), 1),
        ({"min_tokens": 1, "stop_token_ids": (3,)}, (), 5),
    ],
)
def test_greedy(sampling: dict[str, Any], output: tuple[int, ...], expected: int) -> None:
    assert pick(output=output, **sampling).id == expected


def test_repetition_counts_the_prompt_and_presence_does_not() -> None:
    assert pick(prompt=(1,), repetition_penalty=1.2).id == 3
    assert pick(prompt=(1,), presence_penalty=2.0, frequency_penalty=2.0).id == 1


def test_repetition_penalty_lowers_negative_logits_too() -> None:
    assert pick([-1.0, -1.5], output=(0,), repetition_penalty=2.0).id == 1


def draws(count: int = 400, **sampling: Any) -> Counter[int]:
    return Counter(pick(seed=seed, **({"temperature": 1.0} | sampling)).id for seed in range(count))


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {1, 3, 5}),
        ({"top_p": 0.1}, {1}),
        ({"top_p": 0.6}, {1, 3}),
        ({"top_p": 0.9}, {1, 3, 5}),
        ({"min_p": 0.9}, {1, 3}),
        ({"min_p": 0.3}, {1, 3, 5}),
        ({"top_k": 2, "top_p": 0.5}, {1}),  # half of what top_k left
        ({"temperature": 0.01}, {1, 3}),
    ],
)
def test_what_may_be_drawn(sampling: dict[str, Any], allowed: set[int]) -> None:
    assert set(draws(**sampling)) == allowed


def test_draws_follow_the_distribution() -> None:
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum()
    counts = draws(4000)
    for id, chance in enumerate(chances):
        assert abs(counts[id] / 4000 - chance) < 5 * np.sqrt(chance / 4000)


def test_temperature_flattens() -> None:
    assert draws(2000, temperature=3.0)[4] > 3 * draws(2000)[4]


def test_the_draw_depends_on_seed_and_index_alone() -> None:
    first = [pick(temperature=1.0, seed=9, output=(0,) * index).id for index in range(40)]
    assert first == [pick(temperature=1.0, seed=9, output=(2,) * index).id for index in range(40)]
    assert first != [pick(temperature=1.0, seed=10, output=(0,) * index).id for index in range(40)]
    assert len(set(first)) > 2
    assert pick(temperature=1.0, seed=-1).id == pick(temperature=1.0, seed=2**64 - 1).id


def test_logprobs_are_of_the_models_own_distribution() -> None:
    token = pick(logprobs=3, logit_bias={4: 100.0}, temperature=0.5)
    expected = np.array(LOGITS) - np.log(np.exp(LOGITS).sum())
    assert token.id == 4
    assert token.logprob == pytest.approx(expected[4])
    assert [id for id, _ in token.top] == [1, 3, 5]
    assert [logprob for _, logprob in token.top] == pytest.approx(expected[[1, 3, 5]])


def test_logprobs_are_reported_as_asked() -> None:
    assert pick() == Token(1)
    assert pick(logprobs=0).top == ()
    assert pick(logprobs=0).logprob < 0
    assert len(pick(logprobs=99).top) == len(LOGITS)


def test_everything_banned_still_gives_a_token() -> None:
    assert pick([1.0, 2.0], temperature=1.0, min_tokens=1, stop_token_ids=(0,)).id == 0


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=50),
    st.integers(0, 60),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.floats(0.05, 5),
    st.integers(0, 2**64),
)
def test_limits_are_kept(
    logits: list[float], top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    how: dict[str, Any] = {
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "temperature": temperature,
        "seed": seed,
    }
    chosen = pick(logits, **how).id
    scores = np.array(logits, np.float32).astype(float)
    chances = np.exp((scores - scores.max()) / temperature)
    better = np.flatnonzero(chances > chances[chosen])
    assert not top_k or len(better) < top_k
    assert chances[chosen] >= min_p
    kept = chances[chances >= min_p]
    assert chances[better].sum() <= top_p * kept.sum() * (1 + 1e-9) or not len(better)
