"""A reservation lasts as long as its request has time; KV that comes later is worth nothing.

One machine stands still past that time, before everything was put.
"""

import concurrent.futures
import json

import pytest

from fleet import Fleet
from tests.vllm.asking import (
    Body,
    completion,
    expect_nothing_held,
    frozen,
    ids,
    kv_blocks,
    router_with,
    tokens,
    until,
    until_busy,
)

SECONDS = 2.5


@pytest.mark.fault("KV-3")
@pytest.mark.parametrize("still", ["prompt-0", "token-0"])
def test_a_lease_that_runs_out(split: Fleet, unsplit: Fleet, still: str) -> None:
    path, body = completion(prompt=ids(6000, 200 + len(still)), max_tokens=4)
    with (
        router_with(split, request_timeout_seconds=SECONDS),
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(split.send, path, body)
        until_busy(split, "prompt")
        with frozen(split, still):
            status, said = answer.result(30)
            expect_the_other_lets_go(split, still)
    error: Body = json.loads(said)["error"]
    assert (status, error["code"]) == (504, "deadline_exceeded")
    expect_nothing_held(split)
    assert tokens(split.post(path, body)) == tokens(unsplit.post(path, body))
    expect_nothing_held(split)


def expect_the_other_lets_go(fleet: Fleet, still: str) -> None:
    """In bounded time, though the one that stands still answers nothing. Only a writer of shared memory
    cannot be stopped by force: what it may write is kept from everyone."""
    other = "token-0" if still == "prompt-0" else "prompt-0"
    settings = json.loads((fleet.folder / "token-0.json").read_text())
    if still == "prompt-0" and settings["transfer"]["transport"] == "shm":
        until(lambda: kv_blocks(fleet, other, "quarantined") > 0, f"{other} keeps the blocks aside")
        assert kv_blocks(fleet, other) == kv_blocks(fleet, other, "quarantined")
    else:
        until(lambda: kv_blocks(fleet, other) == 0, f"{other} lets go")
