"""Split equals unsplit, token for token and field for field, whatever the request and the transfer.

The fleets are real processes; the answers of one mixed machine are the oracle. `ACC-EXACT` cases come from
one table, streamed and not; a property-based test draws from the whole space of parameters.
"""

import concurrent.futures
import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet import Fleet

Body = dict[str, Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def ids(count: int, seed: int = 1) -> list[int]:
    """A prompt of so many token ids, none of them special."""
    return random.Random(seed).choices(range(3, 384), k=count)


def completion(**more: Any) -> tuple[str, Body]:
    return COMPLETIONS, {"model": "tiny", "prompt": ids(40), "max_tokens": 17, "temperature": 0} | more


def chat(**more: Any) -> tuple[str, Body]:
    messages = [
        {"role": "system", "content": "Answer as the old king would."},
        {"role": "user", "content": "What do the wind and the water do?"},
    ]
    return CHAT, {"model": "tiny", "messages": messages, "max_tokens": 17, "temperature": 0} | more


SAMPLED: Body = {"temperature": 1.0, "seed": 11, "ignore_eos": True}

CASES: dict[str, tuple[str, Body]] = {
    "greedy": completion(),
    "chat": chat(),
    "sampled": completion(**SAMPLED),
    "top-p": completion(**SAMPLED, top_p=0.7),
    "top-k": completion(**SAMPLED, top_k=5),
    "min-p": completion(**SAMPLED, min_p=0.05),
    "cold": completion(**SAMPLED | {"temperature": 0.3}),
    "penalties": completion(**SAMPLED, presence_penalty=0.8, frequency_penalty=1.1),
    "greedy-penalties": completion(presence_penalty=0.8, frequency_penalty=1.1, repetition_penalty=1.3),
    "logit-bias": completion(**SAMPLED, logit_bias={"40": 6.0, "41": 5.0, "50": -100}),
    "min-tokens": completion(min_tokens=16, logit_bias={"2": 30}),
    "min-tokens-1": completion(min_tokens=1, logit_bias={"2": 60}),
    "max-tokens-1": completion(max_tokens=1),
    "max-tokens-2": completion(max_tokens=2),
    "max-tokens-60": completion(max_tokens=60, ignore_eos=True),
    "end-token-first": completion(logit_bias={"2": 100}),
    "stop-token-ids": completion(**SAMPLED, logit_bias={"40": 9.0}, stop_token_ids=[40]),
    "n-2": completion(**SAMPLED, n=2),
    "n-3-chat": chat(**SAMPLED, n=3),
    "two-prompts": completion(prompt=[ids(20, 5), ids(30, 6)], **SAMPLED),
    "text-prompt": completion(prompt="The man in the boat said: "),
    "echo": completion(prompt="The man in the boat said: ", echo=True),
    "logprobs": completion(**SAMPLED, logprobs=4),
    "logprobs-0": completion(logprobs=0),
    "chat-logprobs": chat(**SAMPLED, logprobs=True, top_logprobs=5),
    "chat-logprobs-greedy": chat(logprobs=True),
    "harmless": chat(user="u", metadata={"a": "b"}, store=False),
    **{f"prompt-{n}": completion(prompt=ids(n, n)) for n in (1, 15, 16, 17, 511, 512, 513, 2049, 5000)},
    **{f"multi-byte-{seed}": completion(**SAMPLED | {"seed": seed}, max_tokens=12) for seed in range(3)},
}


def bare(value: Any) -> Any:
    """An answer without what names this very request: ids, times, and where it ran."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if key not in {"id", "created", "splitwise"}}
    return [bare(item) for item in value] if isinstance(value, list) else value


def tokens(answer: Body) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["splitwise"]["choices"]]


def joined(events: list[Body]) -> Body:
    """A streamed answer put together: per choice its text, logprobs, finish; and the usage."""
    choices: dict[int, Body] = {}
    usage = None
    for event in events:
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            whole = choices.setdefault(choice["index"], {"text": "", "logprobs": [], "finish": None})
            whole["text"] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            whole["finish"] = choice["finish_reason"] or whole["finish"]
            if choice.get("logprobs"):
                whole["logprobs"].append(choice["logprobs"])
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


def flat(logprobs: list[Body]) -> Body:
    """Lists of many small logprobs objects as one object of long lists."""
    keys = {key for part in logprobs for key, value in part.items() if value is not None}
    return {key: [item for part in logprobs for item in part[key] or []] for key in sorted(keys)}


def comparable(events: list[Body]) -> Body:
    whole = joined(events)
    for choice in whole["choices"]:
        choice["logprobs"] = flat(choice["logprobs"])
    return whole


class Oracle:
    """The answers of the unsplit fleet, each asked once."""

    def __init__(self, fleet: Fleet) -> None:
        self.post = cache(lambda path, body: fleet.post(path, json.loads(body)))
        self.stream = cache(lambda path, body: fleet.stream(path, json.loads(body)))


@pytest.fixture(scope="session")
def oracle(unsplit: Fleet) -> Oracle:
    return Oracle(unsplit)


def expect_split(answer: Body, body: Body) -> None:
    """The request really crossed two machines, unless one token is all there is."""
    for choice in answer["splitwise"]["choices"]:
        assert choice["split"] == (body["max_tokens"] > 1), choice


@pytest.mark.parametrize("case", CASES)
def test_split_equals_unsplit(split: Fleet, oracle: Oracle, case: str) -> None:
    path, body = CASES[case]
    answer, expected = split.post(path, body), oracle.post(path, json.dumps(body))
    assert tokens(answer) == tokens(expected)
    assert bare(answer) == bare(expected)
    expect_split(answer, body)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.fault("STREAM-3")
def test_streamed_split_equals_unsplit(split: Fleet, oracle: Oracle, case: str) -> None:
    path, body = CASES[case]
    body = body | {"stream_options": {"include_usage": True}}
    events, expected = split.stream(path, body), oracle.stream(path, json.dumps(body))
    assert tokens(events[-1]) == tokens(expected[-1])
    assert comparable(events) == comparable(expected)


@pytest.mark.parametrize("case", ["greedy", "n-2", "chat", "echo", "multi-byte-1"])
def test_streamed_equals_not_streamed(unsplit: Fleet, oracle: Oracle, case: str) -> None:
    path, body = CASES[case]
    whole = oracle.post(path, json.dumps(body))
    streamed = joined(oracle.stream(path, json.dumps(body | {"stream_options": {"include_usage": True}})))
    texts = [choice.get("text") or choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["text"] for choice in streamed["choices"]] == texts
    assert [choice["finish"] for choice in streamed["choices"]] == [
        choice["finish_reason"] for choice in whole["choices"]
    ]
    assert streamed["usage"] == whole["usage"]


@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_stop_strings_wherever_they_fall(split: Fleet, oracle: Oracle, start: int, length: int) -> None:
    """Among them strings that begin in token 1 and end in token 2."""
    path, body = completion(prompt="The name of the river ", **SAMPLED | {"seed": 3})
    text = oracle.post(path, json.dumps(body))["choices"][0]["text"]
    stopped = body | {"stop": [text[start : start + length]]}
    answer, expected = split.post(path, stopped), oracle.post(path, json.dumps(stopped))
    assert bare(answer) == bare(expected)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["text"] == text[: text.index(text[start : start + length])]
    streamed = stopped | {"stream_options": {"include_usage": True}}
    assert comparable(split.stream(path, streamed)) == comparable(oracle.stream(path, json.dumps(streamed)))


@pytest.mark.fault("STREAM-2")
@pytest.mark.parametrize("count", [1, 2, 17])
def test_exactly_max_tokens(split: Fleet, count: int) -> None:
    path, body = completion(max_tokens=count, ignore_eos=True)
    answer = split.post(path, body)
    assert answer["usage"]["completion_tokens"] == count
    assert len(tokens(answer)[0]) == count
    assert answer["choices"][0]["finish_reason"] == "length"


def test_every_transfer_used_the_transport_and_mode_asked_for(split: Fleet) -> None:
    path, body = completion(prompt=ids(100, 8))
    [choice] = split.post(path, body)["splitwise"]["choices"]
    assert (choice["kv"]["transport"], choice["kv"]["mode"]) == (split.transport, split.mode)  # type: ignore[attr-defined]
    # 100 tokens are 7 blocks of 16; 4 layers of K and V with 2 heads of 16 floats
    assert choice["kv"]["bytes"] == 7 * 16 * 4 * 2 * 2 * 16 * 4
    assert choice["kv"]["visible_seconds"] >= 0


def test_thirty_two_at_once(split: Fleet, oracle: Oracle) -> None:
    """Mixed lengths over several token machines: neighbours in a batch never show."""
    lengths = [1, 5, 16, 17, 40, 100, 300, 600] * 4
    bodies = [
        completion(prompt=ids(n, 100 + i), **SAMPLED | {"seed": i}, max_tokens=8 + i)[1]
        for i, n in enumerate(lengths)
    ]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda body: split.post(COMPLETIONS, body), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        assert bare(answer) == bare(oracle.post(COMPLETIONS, json.dumps(body)))
    used = {choice["token_machine"] for answer in answers for choice in answer["splitwise"]["choices"]}
    assert used == {"token-0", "token-1"}


bodies = st.fixed_dictionaries(
    {
        "prompt": st.builds(ids, st.integers(1, 200), st.integers(0, 10_000)),
        "max_tokens": st.integers(1, 20),
        "temperature": st.sampled_from([0, 0.2, 0.7, 1.0, 1.9]),
        "seed": st.integers(0, 2**31),
    },
    optional={
        "top_p": st.floats(0.05, 1.0),
        "top_k": st.integers(1, 60),
        "min_p": st.floats(0.0, 0.5),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.5, 2),
        "min_tokens": st.integers(0, 5),
        "n": st.integers(1, 2),
        "logprobs": st.integers(0, 5),
        "stop": st.lists(st.text("etaoin ", min_size=1, max_size=3), min_size=1, max_size=3),
        "logit_bias": st.dictionaries(st.integers(0, 383).map(str), st.floats(-20, 20), max_size=4),
        "ignore_eos": st.booleans(),
    },
)


@given(body=bodies, streamed=st.booleans())
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_request(split: Fleet, unsplit: Fleet, body: Body, streamed: bool) -> None:
    body = body | {"model": "tiny", "min_tokens": min(body.get("min_tokens", 0), body["max_tokens"])}
    if streamed:
        answer = comparable(split.stream(COMPLETIONS, body))
        assert answer == comparable(unsplit.stream(COMPLETIONS, body))
    else:
        assert bare(split.post(COMPLETIONS, body)) == bare(unsplit.post(COMPLETIONS, body))
