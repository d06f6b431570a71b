"""A request's logits are the same bits, whoever shares its batch and whoever computed its KV."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_engines import Logits, Rig, rig, split, work
from runtime.engine import Work

PROMPT = [3 + (31 * place) % 380 for place in range(75)]
OTHERS = [[5 + (17 * place + 3 * other) % 370 for place in range(9 + 23 * other)] for other in range(5)]


def same_bits(ours: Rig, theirs: Rig, id: str = "a") -> None:
    """Both computed the same tokens of `id`, from logits equal to the last bit."""
    indices = sorted(index for known, index in theirs.logits if known == id)
    assert indices == list(range(indices[0], indices[0] + len(indices)))
    assert sorted(index for known, index in ours.logits if known == id) == indices
    for index in indices:
        assert_equal_bits(ours.logits[id, index], theirs.logits[id, index])


def assert_equal_bits(ours: Logits, theirs: Logits) -> None:
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.fixture(scope="module")
def alone(llama: Path, cache_dir: Path) -> Rig:
    return rig(llama, cache_dir).submit(work(prompt=PROMPT, max_tokens=24)).run()


def test_the_logits_are_finite_and_the_answer_varies(alone: Rig) -> None:
    assert len(set(alone.tokens("a"))) > 12
    assert all(np.isfinite(row).all() for row in alone.logits.values())


@pytest.mark.parametrize("place", range(6))
def test_in_a_batch_of_others(llama: Path, cache_dir: Path, alone: Rig, place: int) -> None:
    works = [work(f"o{at}", prompt, max_tokens=5 + 7 * at) for at, prompt in enumerate(OTHERS)]
    works.insert(place, work(prompt=PROMPT, max_tokens=24))
    same_bits(rig(llama, cache_dir).submit(*works).run(), alone)


def test_joined_midway_by_others(llama: Path, cache_dir: Path, alone: Rig) -> None:
    ours = rig(llama, cache_dir).submit(work(prompt=PROMPT, max_tokens=24))
    late = [work(f"o{at}", prompt) for at, prompt in enumerate(OTHERS)]

    def join() -> None:
        if late:
            ours.submit(late.pop())

    ours.run(during=join)
    same_bits(ours, alone)


@pytest.mark.parametrize("budget", [1, 5, 8, 16, 37, 74])
def test_cut_into_chunks(llama: Path, cache_dir: Path, alone: Rig, budget: int) -> None:
    same_bits(rig(llama, cache_dir, budget=budget).submit(work(prompt=PROMPT, max_tokens=24)).run(), alone)


@pytest.mark.parametrize("block_tokens", [1, 3, 16, 32])
def test_in_blocks_of_any_size(llama: Path, cache_dir: Path, alone: Rig, block_tokens: int) -> None:
    ours = rig(llama, cache_dir, block_tokens=block_tokens)
    same_bits(ours.submit(work(prompt=PROMPT, max_tokens=24)).run(), alone)


def test_preempted_and_computed_anew(llama: Path, cache_dir: Path, alone: Rig) -> None:
    ours = rig(llama, cache_dir, blocks=11)
    older = work("older", OTHERS[2], max_tokens=70)
    ours.submit(older, work(prompt=PROMPT, max_tokens=24))
    preempted = 0

    def watch() -> None:
        nonlocal preempted
        preempted += bool(ours.tokens("a")) and ours.engine.load().sequences_waiting

    ours.run(during=watch)
    assert preempted, "the pool was meant to be too small for both"
    same_bits(ours, alone)
    assert ours.used == 0


@pytest.mark.parametrize("seen", [1, 7, 23])
def test_restarted_behind_tokens_that_the_client_has_seen(
    llama: Path, cache_dir: Path, alone: Rig, seen: int
) -> None:
    generated = alone.tokens("a")[:seen]
    ours = rig(llama, cache_dir).submit(work(prompt=PROMPT, max_tokens=24, generated=generated)).run()
    assert generated + ours.tokens("a") == alone.tokens("a")
    for (id, index), row in ours.logits.items():
        assert_equal_bits(row, alone.logits[id, index])


@pytest.mark.parametrize("budget", [2048, 20])
def test_split_over_two_machines(llama: Path, cache_dir: Path, alone: Rig, budget: int) -> None:
    prompt_rig = rig(llama, cache_dir, budget=budget, blocks=40)
    token_rig = rig(llama, cache_dir, blocks=50)
    token_rig.submit(work("busy", OTHERS[3], max_tokens=60))  # the blocks differ, and the batch is shared
    token_rig.step()
    split(prompt_rig, token_rig, work(prompt=PROMPT, max_tokens=24))
    assert prompt_rig.tokens("a") + token_rig.tokens("a") == alone.tokens("a")
    assert prompt_rig.end("a") == "handoff"
    prompt_rig.logits |= {key: row for key, row in token_rig.logits.items() if key[0] == "a"}
    same_bits(prompt_rig, alone)
    assert prompt_rig.used == token_rig.used == 0


@pytest.mark.parametrize("layer", range(4))
def test_a_spoilt_layer_is_noticed(llama: Path, cache_dir: Path, alone: Rig, layer: int) -> None:
    """The negative control: these tests can fail."""
    prompt_rig, token_rig = rig(llama, cache_dir), rig(llama, cache_dir)

    def spoil() -> None:
        for block in token_rig.reserved("a") or ():
            token_rig.pool.block(layer, block)[:] = bytes(token_rig.pool.layout.block_bytes)

    split(prompt_rig, token_rig, work(prompt=PROMPT, max_tokens=24), spoil=spoil)
    assert prompt_rig.tokens("a") + token_rig.tokens("a") != alone.tokens("a")


def test_kv_that_is_not_a_number_fails_its_own_request_only(llama: Path, cache_dir: Path, alone: Rig) -> None:
    prompt_rig, token_rig = rig(llama, cache_dir), rig(llama, cache_dir)
    token_rig.submit(work(prompt=PROMPT, max_tokens=24))

    def spoil() -> None:
        token_rig.pool.block(2, (token_rig.reserved("bad") or (0,))[0])[:4] = b"\xff" * 4

    split(prompt_rig, token_rig, work("bad", OTHERS[1]), spoil=spoil)
    failed = token_rig.failed("bad")
    assert failed is not None
    assert failed.code == "engine_failure"
    same_bits(token_rig, alone)
    assert token_rig.used == 0


def test_a_long_prompt_cut_and_shared(llama: Path, cache_dir: Path) -> None:
    """Sums over more than a thousand keys, where summation has most room to differ."""
    long = [3 + (13 * place + place // 7) % 380 for place in range(1500)]
    whole = rig(llama, cache_dir).submit(work(prompt=long, max_tokens=20)).run()
    cut = rig(llama, cache_dir, budget=333)
    cut.submit(work("b", OTHERS[4]), work(prompt=long, max_tokens=20), work("c", long[:700]))
    same_bits(cut.run(), whole)


def test_qwen2_split_over_two_machines(qwen2: Path, cache_dir: Path) -> None:
    alone = rig(qwen2, cache_dir).submit(work(prompt=PROMPT, max_tokens=12)).run()
    prompt_rig, token_rig = rig(qwen2, cache_dir, budget=30), rig(qwen2, cache_dir)
    split(prompt_rig, token_rig, work(prompt=PROMPT, max_tokens=12))
    prompt_rig.logits |= token_rig.logits
    same_bits(prompt_rig, alone)


samplings = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**63 - 1),
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_p": st.sampled_from([1.0, 0.9, 0.2]),
        "top_k": st.sampled_from([0, 1, 40]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "presence_penalty": st.sampled_from([0.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, -0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "logit_bias": st.dictionaries(st.integers(0, 383), st.floats(-10, 10), max_size=2),
        "min_tokens": st.integers(0, 4),
        "stop_token_ids": st.lists(st.integers(0, 383), max_size=40).map(tuple),
        "ignore_eos": st.booleans(),
        "max_tokens": st.integers(1, 9),
        "logprobs": st.sampled_from([-1, 0, 3]),
    }
)
prompts = st.lists(st.integers(0, 383), min_size=1, max_size=45)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.tuples(prompts, samplings, st.booleans()), min_size=1, max_size=5),
    budget=st.sampled_from([1, 7, 32, 2048]),
    sequences=st.integers(1, 5),
    blocks=st.integers(15, 40),
    block_tokens=st.sampled_from([4, 5]),
)
def test_any_mix_answers_as_if_alone(
    llama: Path,
    cache_dir: Path,
    requests: list[tuple[list[int], dict[str, object], bool]],
    budget: int,
    sequences: int,
    blocks: int,
    block_tokens: int,
) -> None:
    works = [work(f"w{at}", prompt, **how) for at, (prompt, how, _) in enumerate(requests)]
    shape = {"budget": budget, "blocks": blocks, "block_tokens": block_tokens}
    prompt_rig, token_rig = (
        rig(llama, cache_dir, **shape),
        rig(llama, cache_dir, sequences=sequences, **shape),
    )
    token_rig.submit(*(w for w, (_, _, apart) in zip(works, requests, strict=True) if not apart))
    for one, (_, _, apart) in zip(works, requests, strict=True):
        if apart:
            split(prompt_rig, token_rig, one)
    token_rig.run()
    for one in works:
        alone = rig(llama, cache_dir).submit(one).run()
        assert heard(prompt_rig, one) + heard(token_rig, one) == alone.tokens(one.id)
        end = prompt_rig.end(one.id)
        assert (token_rig.end(one.id) if end in (None, "handoff") else end) == alone.end(one.id)
        for key, row in alone.logits.items():
            assert_equal_bits(prompt_rig.logits.get(key, token_rig.logits.get(key, row * 0)), row)
    assert prompt_rig.used == token_rig.used == 0


def heard(rig: Rig, work: Work) -> list[int]:
    return rig.tokens(work.id)
