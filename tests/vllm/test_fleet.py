"""Real machines behind the router: nobody can tell that two vLLM engines shared the work."""

import concurrent.futures
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet import Fleet

Body = dict[str, Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAMPLED: Body = {"temperature": 1.0, "seed": 11, "ignore_eos": True}


def ids(count: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(3, 384), k=count)


def completion(**more: Any) -> tuple[str, Body]:
    return COMPLETIONS, {"model": "tiny", "prompt": ids(40), "max_tokens": 17, "temperature": 0} | more


def chat(**more: Any) -> tuple[str, Body]:
    messages = [{"role": "user", "content": "What do the wind and the water do?"}]
    return CHAT, {"model": "tiny", "messages": messages, "max_tokens": 17, "temperature": 0} | more


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


def tokens(answer: Body) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["splitwise"]["choices"]]


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
            leave_after(split, body, pause)
    expect_nothing_held(split)
    path, body = CASES["greedy"]
    assert split.post(path, body)["usage"]["completion_tokens"] > 0


def leave_after(fleet: Fleet, body: Body, seconds: float) -> None:
    host, port = fleet.url.removeprefix("http://").split(":")
    data = json.dumps(body | {"stream": True}).encode()
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        time.sleep(seconds)


def expect_nothing_held(fleet: Fleet) -> None:
    for name in fleet.observe:
        if fleet.processes[name].poll() is None:
            for state in ("used", "quarantined"):
                until_zero(fleet, name, f'splitwise_kv_blocks{{state="{state}"}}')


def until_zero(fleet: Fleet, name: str, series: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while (value := fleet.metrics(name).get(series, 0)) != 0:
        assert time.monotonic() < end, f"{name}: {series} stays at {value}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def four(make_fleet: Callable[..., Fleet]) -> Iterator[Fleet]:
    """Two machines of each kind, so that one may die; peers are given up quickly."""
    roles = {"prompt-0": "prompt", "prompt-1": "prompt", "token-0": "token", "token-1": "token"}
    with make_fleet(roles) as fleet:
        yield fleet


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


def until_busy(fleet: Fleet, kind: str, seconds: float = 60.0) -> str:
    """The machine of a kind that computes something now."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, process in fleet.processes.items():
            alive = name.startswith(kind) and process.poll() is None
            if alive and fleet.metrics(name).get('splitwise_kv_blocks{state="used"}', 0):
                return name
        time.sleep(0.005)
    raise AssertionError(f"no {kind} machine became busy")


@pytest.mark.slow
def test_compiled_code_gives_the_same_tokens(make_fleet: Callable[..., Fleet], unsplit: Fleet) -> None:
    """vLLM's compiled mode keeps the hooks at every layer."""
    compiled = {"engine_args": ["--no-enforce-eager"]}
    with make_fleet({"prompt-0": "prompt", "token-0": "token"}, machine=compiled) as fleet:
        for count in (5, 100, 700):
            path, body = completion(prompt=ids(count, count))
            assert tokens(fleet.post(path, body)) == tokens(unsplit.post(path, body))
