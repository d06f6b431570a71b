"""The prompt pool is gone: `degradedMode` decides what becomes of requests, and counters say so."""

import concurrent.futures
import json
from collections.abc import Callable, Iterator

import pytest

from fleet import Fleet
from tests.vllm.asking import (
    completion,
    expect_nothing_held,
    frozen,
    ids,
    router_with,
    tokens,
    told,
    until,
    until_busy,
)


@pytest.fixture(scope="module")
def pair(make_fleet: Callable[..., Fleet]) -> Iterator[Fleet]:
    """KV goes over TCP, so that a token machine that stands still holds it up."""
    roles = {"prompt-0": "prompt", "token-0": "token"}
    with make_fleet(roles, transport="tcp", machine={"degraded_mode": "recompute"}) as fleet:
        yield fleet


@pytest.mark.fault("SPLIT-1")
def test_recompute_answers_from_the_first_token_on(pair: Fleet, unsplit: Fleet) -> None:
    """Killed behind its first token with the KV still on its way: the token machine computes the prompt."""
    path, body = completion(prompt=ids(6000, 21), max_tokens=9, ignore_eos=True)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(pair.post, path, body)
        until_busy(pair, "prompt")
        with frozen(pair, "token-0"):
            until(lambda: told(pair) == 1, "the first token is there")
            pair.kill("prompt-0")
        got = answer.result(60)
    assert tokens(got) == tokens(unsplit.post(path, body))
    [choice] = got["splitwise"]["choices"]
    assert (choice["restarts"], choice["kv"]) == (0, None)
    assert pair.metrics("token-0")["splitwise_kv_transfer_failures_total"] == 1
    expect_nothing_held(pair)


@pytest.mark.fault("SPLIT-1")
@pytest.mark.parametrize(
    ("mode", "status", "counter"),
    [
        ("fail", 503, 'splitwise_requests_total{endpoint="completion",outcome="no_capacity"}'),
        ("recompute", 503, 'splitwise_requests_total{endpoint="completion",outcome="no_capacity"}'),
        ("mixed", 200, 'splitwise_routes_total{mode="whole"}'),
    ],
)
def test_an_empty_prompt_pool(pair: Fleet, unsplit: Fleet, mode: str, status: int, counter: str) -> None:
    pair.kill("prompt-0")
    path, body = completion(prompt=ids(70, 22))
    more = {"degraded_mode": mode, "wait_for_machines_seconds": 0.2}
    with router_with(pair, **more), concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: pair.send(path, body), range(20)))
        series = pair.metrics("router")
    assert {got for got, _ in answers} == {status}
    assert series[counter] == 20
    assert series['splitwise_routes_total{mode="split"}'] == 0
    for _, said in answers:
        answer = json.loads(said)
        if status == 200:
            assert tokens(answer) == tokens(unsplit.post(path, body))
        else:
            assert "the prompt pool is empty" in answer["error"]["message"]
    expect_nothing_held(pair)
