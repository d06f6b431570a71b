"""Clients that leave at chosen moments: whichever machine hears of it first, no KV block stays behind."""

from collections.abc import Callable

import pytest

from fleet import Fleet
from tests.vllm.asking import (
    asked,
    completion,
    expect_nothing_held,
    frozen,
    ids,
    kv_blocks,
    legs,
    tokens,
    told,
    until,
)

Leave = Callable[[], None]


def nobody_has_reserved(fleet: Fleet, leave: Leave) -> None:
    with frozen(fleet, "token-0"):
        until(lambda: legs(fleet, "prompt-0") == 1, "the legs have begun")
        leave()


def the_prompt_has_not_begun(fleet: Fleet, leave: Leave) -> None:
    with frozen(fleet, "prompt-0"):
        until(lambda: kv_blocks(fleet, "token-0") > 0, "the token machine has reserved")
        leave()


def the_prompt_computes(fleet: Fleet, leave: Leave) -> None:
    until(lambda: kv_blocks(fleet, "prompt-0") > 0, "the prompt computes")
    leave()


def the_prompt_computes_and_only_its_machine_hears(fleet: Fleet, leave: Leave) -> None:
    until(lambda: kv_blocks(fleet, "prompt-0") > 0, "the prompt computes")
    with frozen(fleet, "token-0"):
        leave()
        until(lambda: kv_blocks(fleet, "prompt-0") == 0, "the prompt machine has let go")


def the_kv_moves(fleet: Fleet, leave: Leave) -> None:
    before = told(fleet)
    until(lambda: kv_blocks(fleet, "prompt-0") > 0, "the prompt computes")
    with frozen(fleet, "token-0"):
        until(lambda: told(fleet) > before, "the first token is there")
        leave()


def tokens_stream(fleet: Fleet, leave: Leave) -> None:
    before = told(fleet)
    until(lambda: told(fleet) > before + 5, "tokens stream")
    leave()


MOMENTS = (
    nobody_has_reserved,
    the_prompt_has_not_begun,
    the_prompt_computes,
    the_prompt_computes_and_only_its_machine_hears,
    the_kv_moves,
    tokens_stream,
)


@pytest.mark.fault("KV-1", "KV-6")
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_client_that_leaves_while(
    split: Fleet, unsplit: Fleet, moment: Callable[[Fleet, Leave], None]
) -> None:
    # Three batches of prompt, so that the first is seen before the last is done; never the same ones, for
    # what a prefix cache holds is not computed.
    prompt = ids(6000, 100 + MOMENTS.index(moment))
    client = asked(split, completion(prompt=prompt, max_tokens=400, ignore_eos=True)[1])

    def leave() -> None:
        client.close()
        until(lambda: not legs(split, "prompt-0") and not legs(split, "token-0"), "the router has cancelled")

    with client:
        moment(split, leave)
    path, body = completion(prompt=ids(50, 9))  # behind it, so that everyone has heard
    assert tokens(split.post(path, body)) == tokens(unsplit.post(path, body))
    expect_nothing_held(split)
