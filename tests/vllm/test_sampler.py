"""The sampler beside the reference engine's: the same rules, hence the same tokens for the same seeds."""

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.reference.sampling import sample
from runtime.wire import Sampling

VOCABULARY = 64

samplings = st.builds(
    Sampling,
    max_tokens=st.just(50),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.2, 0.8, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 63, 64, 100]),
    min_p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    presence_penalty=st.sampled_from([0.0, -1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.5]),
)


def row(sampling: Sampling, prompt: list[int], output: list[int], prior: int) -> Any:
    """What the sampler keeps of a request of whose output `prior` tokens came from elsewhere."""
    from runtime.engine.vllm.sampler import Choice, _Row

    names = {field.name for field in fields(Choice)} & set(Sampling.__struct_fields__)
    choice = Choice(**{name: getattr(sampling, name) for name in names}, prior=prior)
    return _Row(choice, prompt + output[:prior], output[prior:])


@given(cases=st.lists(st.tuples(samplings, st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_same_tokens_as_the_reference(cases: list[tuple[Sampling, int, int]]) -> None:
    import torch

    from runtime.engine.vllm.sampler import choose

    logits, rows, expected = [], [], []
    for place, (sampling, said, prior) in enumerate(cases):
        made = np.random.default_rng(place)
        logits.append(made.normal(0, 3, VOCABULARY).astype(np.float32))
        prompt, output = made.integers(0, 64, 7).tolist(), made.integers(0, 64, said).tolist()
        rows.append(row(sampling, prompt, output, min(prior, said)))
        token = sample(logits[-1], sampling, prompt=prompt, output=output, end_tokens=frozenset())
        expected.append(token.id)
    chosen = choose(torch.tensor(np.array(logits)).double(), rows)
    assert chosen.tolist() == expected


def test_a_neighbour_never_shows() -> None:
    """Whatever else is in the batch, a row's token is the one it gets alone."""
    import torch

    from runtime.engine.vllm.sampler import choose

    made = random.Random(3)
    kinds = [
        Sampling(9, seed, top_p=made.choice([1.0, 0.8]), top_k=made.choice([0, 9])) for seed in range(40)
    ]
    scores = torch.tensor(np.random.default_rng(1).normal(0, 2, (40, VOCABULARY)))
    rows = [row(sampling, [1, 2], [3], 0) for sampling in kinds]
    together = choose(scores.clone(), rows).tolist()
    assert together == [choose(scores[n : n + 1].clone(), rows[n : n + 1]).item() for n in range(40)]


class TestRows:
    """vLLM tells of rows that come, go and move."""

    @pytest.fixture
    def sampler(self) -> Any:
        import torch

        from runtime.engine.vllm.sampler import ExactSampler

        return ExactSampler(None, torch.device("cpu"), False)

    def update(self, *, removed: Any = (), added: Any = (), moved: Any = ()) -> Any:
        from vllm.v1.sample.logits_processor import BatchUpdate

        return BatchUpdate(batch_size=4, removed=removed, added=added, moved=moved)

    def params(self, forced: int) -> Any:
        from vllm import SamplingParams

        from runtime.engine.vllm.sampler import KEY, Choice

        return SamplingParams(temperature=0, extra_args={KEY: Choice(1, forced=forced)})

    def chosen(self, sampler: Any) -> list[int]:
        import torch

        logits = torch.zeros(4, VOCABULARY)
        logits[:, 0] = 1.0
        return list(sampler.apply(logits).argmax(dim=-1).tolist())

    def test_rows_come_and_go(self, sampler: Any) -> None:
        from vllm import SamplingParams
        from vllm.v1.sample.logits_processor import MoveDirectionality

        plain = SamplingParams(temperature=0)
        sampler.update_state(self.update(added=[(0, self.params(11), [1], []), (1, plain, [1], [])]))
        assert self.chosen(sampler) == [11, 0, 0, 0]
        sampler.update_state(self.update(added=[(2, self.params(22), [1], [])]))
        assert self.chosen(sampler) == [11, 0, 22, 0]
        sampler.update_state(self.update(moved=[(0, 2, MoveDirectionality.SWAP)]))
        assert self.chosen(sampler) == [22, 0, 11, 0]
        sampler.update_state(self.update(removed=[0], moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)]))
        assert self.chosen(sampler) == [11, 0, 0, 0]
        sampler.update_state(self.update(added=[(0, plain, [1], [])]))
        assert self.chosen(sampler) == [0, 0, 0, 0]
        sampler.update_state(None)
        assert not sampler.is_argmax_invariant()
