"""The engine by itself: split equals whole, losses show, and nothing stays behind, whoever gives up when."""

import random
from collections.abc import Iterator

import pytest

from runtime.engine import Work
from runtime.engine.vllm.arguments import Switches
from runtime.errors import InvalidRequest
from runtime.wire import Sampling, Token
from tests.vllm.loopback import Loopback, LoopPut

GREEDY = Sampling(20, 1, temperature=0)
DRAWN = Sampling(20, 7)


def ids(count: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(3, 384), k=count)


@pytest.fixture(autouse=True)
def nothing_stays(loopback: Loopback) -> Iterator[None]:
    """After every test: the engine rests, and no block is used or in quarantine."""
    yield
    loopback.run()
    load = loopback.engine.load()
    loopback.end_all()
    assert (load.kv_blocks_used, load.kv_blocks_quarantined) == (0, 0)
    assert (load.sequences_waiting, load.sequences_running) == (0, 0)


SAMPLINGS = {
    "greedy": GREEDY,
    "drawn": DRAWN,
    "top-p": Sampling(20, 3, top_p=0.7),
    "top-k": Sampling(20, 4, top_k=5),
    "min-p": Sampling(20, 5, min_p=0.1),
    "cold": Sampling(20, 6, temperature=0.3),
    "penalties": Sampling(20, 8, presence_penalty=1.2, frequency_penalty=0.7, repetition_penalty=1.3),
    "greedy-penalties": Sampling(20, 9, temperature=0, frequency_penalty=1.5, repetition_penalty=1.4),
    "min-tokens": Sampling(20, 1, temperature=0, min_tokens=9, logit_bias={2: 40.0}),
    "bias": Sampling(20, 2, logit_bias={40: 5.0, 41: 5.0, 50: -100.0}),
    "stop-id": Sampling(20, 2, logit_bias={40: 6.0}, stop_token_ids=(40,)),
    "end-first": Sampling(20, 1, temperature=0, logit_bias={2: 100.0}),
    "ignore-eos": Sampling(20, 1, temperature=0, logit_bias={2: 9.0}, ignore_eos=True),
    "two-tokens": Sampling(2, 1, temperature=0),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_split_equals_whole(loopback: Loopback, name: str) -> None:
    for count in (1, 31, 32, 33, 300):
        prompt = ids(count, count)
        whole, split = loopback.whole(prompt, SAMPLINGS[name]), loopback.split(prompt, SAMPLINGS[name])
        assert (split.ids, split.end) == (whole.ids, whole.end)


@pytest.mark.parametrize("count", [2047, 2048, 2049, 5000])
def test_long_prompts(loopback: Loopback, count: int) -> None:
    prompt = ids(count, count)
    assert loopback.split(prompt, DRAWN).ids == loopback.whole(prompt, DRAWN).ids


def test_twenty_at_once(loopback: Loopback) -> None:
    """Mixed lengths, among them one over the batch and prompts that share what is in the prefix cache."""
    shared = ids(700, 99)
    lengths = [1, 5, 31, 32, 33, 64, 100, 128, 200, 300, 500, 2100]
    prompts = [ids(n, n) for n in lengths] + [
        shared[:n] + ids(7, n) for n in (40, 100, 200, 320, 480, 640, 700, 33)
    ]
    requests = [(prompt, replace_seed(DRAWN, place)) for place, prompt in enumerate(prompts)]
    one_by_one = [loopback.whole(*request).ids for request in requests]
    assert [told.ids for told in loopback.wholes(requests)] == one_by_one
    assert [told.ids for told in loopback.splits(requests)] == one_by_one


def replace_seed(sampling: Sampling, seed: int) -> Sampling:
    return Sampling(sampling.max_tokens, seed, temperature=sampling.temperature)


@pytest.mark.parametrize("name", ["greedy", "drawn", "penalties", "min-tokens"])
def test_a_restart_goes_on_as_if_nothing_had_been(loopback: Loopback, name: str) -> None:
    prompt, sampling = ids(50, 4), SAMPLINGS[name]
    whole = loopback.whole(prompt, sampling).ids
    for seen in (1, 5):
        assert loopback.whole(prompt, sampling, whole[:seen]).ids == whole[seen:]
        assert loopback.split(prompt, sampling, whole[:seen]).ids == whole[seen:]


@pytest.mark.parametrize("name", ["greedy", "drawn", "penalties", "min-tokens", "two-tokens"])
def test_recomputing_the_first_token_is_as_exact(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(loopback.engine, "_switches", Switches(recompute_first_token=True))
    for count in (1, 32, 200):
        prompt = ids(count, count)
        whole, split = loopback.whole(prompt, SAMPLINGS[name]), loopback.split(prompt, SAMPLINGS[name])
        assert (split.ids, split.end) == (whole.ids, whole.end)


def test_recomputing_continues_behind_the_token_that_was_told(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where this machine would have chosen another first token."""
    monkeypatch.setattr(loopback.engine, "_switches", Switches(recompute_first_token=True))
    prompt = ids(60, 6)
    leg = loopback.reserve(prompt, GREEDY)
    put = loopback.prompt(leg, prompt, GREEDY)
    loopback.run()
    assert put.first is not None
    other = 300 if put.first.id != 300 else 301
    loopback.engine.drained(f"{leg}-prompt")
    loopback.engine.arrived(leg, Token(other))
    loopback.run()
    assert loopback.told[leg].ids == loopback.whole(prompt, GREEDY, [other]).ids


def test_logprobs_are_those_of_the_whole(loopback: Loopback) -> None:
    sampling = Sampling(12, 3, logprobs=4, frequency_penalty=1.0)
    whole, split = loopback.whole(ids(90), sampling), loopback.split(ids(90), sampling)
    assert split.ids == whole.ids
    for ours, theirs in zip(split.tokens, whole.tokens, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [id for id, _ in ours.top] == [id for id, _ in theirs.top]
        assert len(ours.top) == 4
        assert ours.logprob <= 0


@pytest.mark.parametrize("layer", range(4))
def test_a_lost_layer_shows(loopback: Loopback, layer: int) -> None:
    """The negative control: these tests would notice."""
    prompts = [ids(200, seed) for seed in range(5)]
    lost = [loopback.split(prompt, GREEDY, lost=frozenset({layer})).ids for prompt in prompts]
    assert all(ours != loopback.whole(prompt, GREEDY).ids for ours, prompt in zip(lost, prompts, strict=True))


def test_every_layer_and_block_is_put_once_and_in_order(loopback: Loopback) -> None:
    prompt = ids(5000, 5)
    leg = loopback.reserve(prompt, GREEDY)
    put = loopback.prompt(leg, prompt, GREEDY)
    loopback.run()
    loopback.hand_over(leg, put)
    assert len(put.begun) == 1
    assert sorted(put.seen) == [(layer, block) for layer in range(4) for block in range(157)]
    for layer in range(4):
        blocks = [block for put_layer, block in put.seen if put_layer == layer]
        assert blocks == sorted(blocks)


def test_a_reservation_covers_the_prompt(loopback: Loopback) -> None:
    for count, blocks in ((1, 1), (32, 1), (33, 2), (64, 2), (65, 3)):
        leg = loopback.reserve(ids(count), GREEDY)
        assert len(loopback.reserved[leg]) == blocks
        loopback.engine.cancel(leg)
        loopback.engine.fenced(leg)


def test_waiting_for_a_peer_costs_nothing(loopback: Loopback) -> None:
    leg = loopback.reserve(ids(100), GREEDY)
    loopback.run()
    assert not loopback.engine.busy()
    loopback.engine.cancel(leg)
    loopback.engine.fenced(leg)


class TestGivingUp:
    """Blocks of a leg that ends early come back only when its peer is known to be gone."""

    def used(self, loopback: Loopback) -> tuple[int, int]:
        loopback.run()
        load = loopback.engine.load()
        return load.kv_blocks_used, load.kv_blocks_quarantined

    def test_a_token_leg_before_its_fence(self, loopback: Loopback) -> None:
        leg = loopback.reserve(ids(100), GREEDY)
        loopback.engine.cancel(leg)
        assert self.used(loopback) == (4, 4)
        others = [loopback.reserve(ids(100, seed), GREEDY) for seed in range(3)]
        taken = {block for other in others for block in loopback.reserved[other]}
        assert not taken & set(loopback.reserved[leg])
        for other in [leg, *others]:
            loopback.engine.cancel(other)
            loopback.engine.fenced(other)
        assert self.used(loopback) == (0, 0)

    def test_a_token_leg_whose_fence_came_first(self, loopback: Loopback) -> None:
        leg = loopback.reserve(ids(100), GREEDY)
        loopback.engine.fenced(leg)
        loopback.run()
        loopback.engine.cancel(leg)
        assert self.used(loopback) == (0, 0)

    def test_a_token_leg_before_it_is_reserved(self, loopback: Loopback) -> None:
        loopback.engine.submit(Work("early", "token", ids(100), GREEDY))
        loopback.engine.cancel("early")
        loopback.engine.fenced("early")
        assert self.used(loopback) == (0, 0)

    def test_a_token_leg_just_after_its_arrival(self, loopback: Loopback) -> None:
        leg = loopback.reserve(ids(100), GREEDY)
        loopback.engine.arrived(leg, Token(77))
        loopback.engine.cancel(leg)
        assert self.used(loopback) == (0, 0)

    def test_a_token_leg_in_the_middle(self, loopback: Loopback) -> None:
        leg = loopback.reserve(ids(100), Sampling(1000, 1, temperature=0, ignore_eos=True))
        loopback.engine.arrived(leg, Token(77))
        loopback.run(lambda: leg in loopback.told and len(loopback.told[leg].tokens) > 5)
        loopback.engine.cancel(leg)
        assert self.used(loopback) == (0, 0)

    def test_a_prompt_before_it_begins(self, loopback: Loopback) -> None:
        leg = loopback.reserve(ids(100), GREEDY)
        put = loopback.prompt(leg, ids(100), GREEDY)
        loopback.engine.cancel(f"{leg}-prompt")
        loopback.engine.cancel(leg)
        loopback.engine.fenced(leg)
        assert self.used(loopback) == (0, 0)
        assert put.seen == []

    def test_a_prompt_between_two_chunks(self, loopback: Loopback) -> None:
        leg = loopback.reserve(ids(5000), GREEDY)
        put = loopback.prompt(leg, ids(5000), GREEDY)
        loopback.run(lambda: bool(put.seen))
        loopback.engine.cancel(f"{leg}-prompt")
        loopback.engine.cancel(leg)
        loopback.engine.fenced(leg)
        used, quarantined = self.used(loopback)
        assert (used > 0, quarantined) == (True, 0)  # a put may still read the blocks of the first chunk
        loopback.engine.drained(f"{leg}-prompt")
        assert self.used(loopback) == (0, 0)
        assert put.first is None

    def test_a_finished_prompt_whose_puts_still_read(self, loopback: Loopback) -> None:
        leg = loopback.reserve(ids(100), GREEDY)
        loopback.prompt(leg, ids(100), GREEDY)
        loopback.run()
        assert self.used(loopback) == (8, 0)
        loopback.engine.drained(f"{leg}-prompt")
        assert self.used(loopback) == (4, 0)
        loopback.engine.cancel(leg)
        loopback.engine.fenced(leg)

    def test_a_put_that_breaks(self, loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
        """An exception in a hook is that request's failure, not the engine's end."""
        leg = loopback.reserve(ids(100), GREEDY)
        monkeypatch.setattr(LoopPut, "layer", _broken)
        put = loopback.prompt(leg, ids(100), GREEDY)
        loopback.run()
        failed = loopback.told[f"{leg}-prompt"].failed
        assert failed is not None
        assert "RuntimeError: no link" in failed.message
        assert put.aborted
        monkeypatch.undo()
        loopback.engine.drained(f"{leg}-prompt")
        loopback.engine.cancel(leg)
        loopback.engine.fenced(leg)
        assert loopback.split(ids(40), GREEDY).ids == loopback.whole(ids(40), GREEDY).ids


def _broken(*_: object) -> None:
    raise RuntimeError("no link")


def test_news_of_unknown_requests_is_ignored(loopback: Loopback) -> None:
    loopback.engine.cancel("nobody")
    loopback.engine.fenced("nobody")
    loopback.engine.drained("nobody")
    loopback.engine.arrived("nobody", Token(3))
    loopback.run()


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (Work("a", "whole", [], GREEDY), "empty"),
        (Work("a", "whole", [3, 384], GREEDY), "token 384"),
        (Work("a", "whole", [5] * 9000, GREEDY), "leave no room"),
        (Work("a", "whole", [5], Sampling(5, 1, logit_bias={999: 1.0})), "logit_bias 999"),
        (Work("a", "whole", [5], Sampling(2, 1), [7, 8]), "max_tokens 2"),
    ],
)
def test_impossible_works_are_refused(loopback: Loopback, work: Work, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        loopback.engine.submit(work)


def test_memory_pressure_loses_no_token(loopback: Loopback) -> None:
    """More answers than the pool can hold at their full length: some wait or are computed anew."""
    sampling = Sampling(700, 1, temperature=0, ignore_eos=True)
    requests = [(ids(400, seed), sampling) for seed in range(12)]
    together = [told.ids for told in loopback.wholes(requests)]
    assert all(len(tokens) == 700 for tokens in together)
    assert together[3] == loopback.whole(*requests[3]).ids
