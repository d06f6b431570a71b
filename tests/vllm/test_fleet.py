"""Real machines behind the router: nobody can tell that two vLLM engines shared the work."""

import concurrent.futures
import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet import Fleet
from tests.vllm.asking import (
    COMPLETIONS,
    SAMPLED,
    Body,
    asked,
    chat,
    completion,
    expect_nothing_held,
    frozen,
    ids,
    tokens,
    until_busy,
)

CASES: dict[str, tuple[str, Body]] = {
    "greedy": completion(),
    "chat": chat(),
    "sampled": completion(**SAMPLED),
    "top-p": completion(**SAMPLED, top_p=0.7),
    "top-k": completion(**SAMPLED, top_k=5),
    "min-p": completion(**SAMPLED, min_p=0.05),
    "penalties": completion(**SAMPLED, presence_penalty=0.8, frequency_penalty=1.1),
    "greedy-penalties": completion(presence_penalty=0.8, frequency_penalty=1.1, repetition_penalty=1.3),
    "logit-bias": completion(**SAMPLED, logit_bias={"40": 6.0, "41": 5.0, "50": -100}),
    "min-tokens": completion(min_tokens=16, logit_bias={"2": 30}),
    "max-tokens-1": completion(max_tokens=1),
    "max-tokens-2": completion(max_tokens=2),
    "end-token-first": completion(logit_bias={"2": 100}),
    "stop-token-ids": completion(**SAMPLED, logit_bias={"40": 9.0}, stop_token_ids=[40]),
    "stop-string": completion(**SAMPLED, prompt="The name of the river ", stop=["e", "a", "t"]),
    "n-3": completion(**SAMPLED, n=3),
    "two-prompts": completion(prompt=[ids(20, 5), ids(30, 6)], **SAMPLED),
    "echo": completion(prompt="The man in the boat said: ", echo=True),
    "logprobs": completion(**SAMPLED, logprobs=4),
    "chat-logprobs": chat(**SAMPLED, logprobs=True, top_logprobs=5),
    **{f"prompt-{n}": completion(prompt=ids(n, n)) for n in (1, 31, 32, 33, 511, 513, 2049, 5000)},
}


def bare(value: Any) -> Any:
    """An answer without what names this very request, its log-probabilities to four digits: batches of
    different sizes round differently."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if key not in {"id", "created", "splitwise"}}
    if isinstance(value, list):
        return [bare(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value


@pytest.mark.parametrize("case", CASES)
def test_split_equals_unsplit(split: Fleet, unsplit: Fleet, case: str) -> None:
    path, body = CASES[case]
    answer, expected = split.post(path, body), unsplit.post(path, body)
    assert tokens(answer) == tokens(expected)
    assert bare(answer) == bare(expected)
    for choice in answer["splitwise"]["choices"]:
        assert choice["split"] == (body["max_tokens"] > 1)


@pytest.mark.parametrize("case", ["greedy", "chat", "n-3", "stop-string", "echo", "prompt-513"])
def test_streamed_split_equals_unsplit(split: Fleet, unsplit: Fleet, case: str) -> None:
    path, body = CASES[case]
    body = body | {"stream_options": {"include_usage": True}}
    events, expected = split.stream(path, body), unsplit.stream(path, body)
    assert tokens(events[-1]) == tokens(expected[-1])
    assert texts(events) == texts(expected)
    assert events[-1].get("usage") == expected[-1].get("usage")


def texts(events: list[Body]) -> dict[int, str]:
    """What each choice said, all events together."""
    said: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
            said[choice["index"]] = said.get(choice["index"], "") + piece
    return said


def test_the_transfer_is_the_one_asked_for(split: Fleet) -> None:
    for count, mode in ((63, "serialized"), (200, "layerwise")):
        [choice] = split.post(*completion(prompt=ids(count, 1000 + count)))["splitwise"]["choices"]
        assert choice["kv"]["mode"] == mode
        # blocks of 32 tokens; 4 layers of K and V with 2 heads of 32 floats
        assert choice["kv"]["bytes"] == -(-count // 32) * 32 * 4 * 2 * 2 * 32 * 4


def test_twenty_at_once_twice(split: Fleet, unsplit: Fleet) -> None:
    """Mixed lengths, shared beginnings; the second time from the prompt machine's prefix cache."""
    shared = ids(600, 7)
    lengths = [1, 5, 32, 33, 100, 300, 600, 1000, 2100, 64]
    prompts = [ids(n, n) for n in lengths] + [shared[: 60 * n] + ids(5, n) for n in range(1, 11)]
    bodies = [
        completion(prompt=prompt, **SAMPLED | {"seed": place}, max_tokens=8 + place)[1]
        for place, prompt in enumerate(prompts)
    ]
    expected = [tokens(unsplit.post(COMPLETIONS, body)) for body in bodies]
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda body: tokens(split.post(COMPLETIONS, body)), bodies))
        assert answers == expected


def test_clients_that_leave_at_any_moment_leave_nothing_behind(split: Fleet) -> None:
    """Before the first token, after it, and in the middle; prompts short and in several chunks."""
    for count in (40, 3000):
        body = completion(prompt=ids(count, count), max_tokens=400, ignore_eos=True)[1]
        for pause in (0.0, 0.01, 0.05, 0.2, 0.5):
            with asked(split, body):
                time.sleep(pause)
    expect_nothing_held(split)
    path, body = CASES["greedy"]
    assert split.post(path, body)["usage"]["completion_tokens"] > 0


@pytest.fixture(scope="module")
def four(make_fleet: Callable[..., Fleet]) -> Iterator[Fleet]:
    """Two machines of each kind, so that one may die; peers are given up quickly."""
    roles = {"prompt-0": "prompt", "prompt-1": "prompt", "token-0": "token", "token-1": "token"}
    with make_fleet(roles, patience=10.0) as fleet:
        yield fleet


@pytest.mark.slow
@pytest.mark.fault("KV-3")
def test_a_prompt_machine_that_stalls_is_given_up(four: Fleet, unsplit: Fleet) -> None:
    """The reservation ends with its silence; the prompt is computed by the other machine. What the silent
    one may still write is given to nobody until it has spoken."""
    path, body = completion(prompt=ids(6000, 2), max_tokens=5)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(four.post, path, body)
        with frozen(four, until_busy(four, "prompt")):
            got = answer.result(120)
    assert tokens(got) == tokens(unsplit.post(path, body))
    assert got["splitwise"]["choices"][0]["restarts"] == 1
    expect_nothing_held(four)


@pytest.mark.slow
def test_killed_machines_are_not_noticed(four: Fleet, unsplit: Fleet) -> None:
    """First a token machine in mid-stream, then a prompt machine while it computes."""
    long = completion(prompt=ids(100, 3), max_tokens=300, **SAMPLED)[1]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(four.post, COMPLETIONS, long)
        four.kill(until_busy(four, "token"))
        got = answer.result(120)
    assert tokens(got) == tokens(unsplit.post(COMPLETIONS, long))
    assert got["splitwise"]["choices"][0]["restarts"] == 1
    expect_nothing_held(four)

    big = completion(prompt=ids(6000, 4), max_tokens=5)[1]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(four.post, COMPLETIONS, big)
        four.kill(until_busy(four, "prompt"))
        got = answer.result(120)
    assert tokens(got) == tokens(unsplit.post(COMPLETIONS, big))
    assert got["splitwise"]["choices"][0]["restarts"] == 1
    expect_nothing_held(four)


@pytest.mark.slow
def test_a_machine_may_have_more_threads_than_torch_would_take(make_fleet: Callable[..., Fleet]) -> None:
    """vLLM's kernels and torch agree on a number that is not torch's own."""
    with make_fleet({"mixed-0": "mixed"}, threads=(os.cpu_count() or 1) + 1) as fleet:
        assert len(tokens(fleet.post(*completion(prompt=ids(100, 3), max_tokens=9))))


COMPILES = bool(shutil.which("g++")) and Path(sysconfig.get_path("include"), "Python.h").exists()


@pytest.mark.slow
@pytest.mark.skipif(not COMPILES, reason="torch compiles with g++ and Python's headers; install both")
def test_compiled_code_gives_the_same_tokens(make_fleet: Callable[..., Fleet], unsplit: Fleet) -> None:
    """vLLM's compiled mode keeps the hooks at every layer."""
    compiled = {"engine_args": ["--no-enforce-eager"]}
    with make_fleet({"prompt-0": "prompt", "token-0": "token"}, machine=compiled) as fleet:
        for count in (5, 100, 700):
            path, body = completion(prompt=ids(count, count))
            assert tokens(fleet.post(path, body)) == tokens(unsplit.post(path, body))
