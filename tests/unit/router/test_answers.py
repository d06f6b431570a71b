"""Answers of both endpoints, whole and streamed, over a prompt machine and a token machine."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fake_machine import FakeMachine
from front import TRACE, Reply, Serve, play
from runtime.tokenizer import Tokenizer
from runtime.wire import Token, Transfer

Pair = tuple[FakeMachine, FakeMachine]
TRANSFER = Transfer("layerwise", "tcp", 4096, 0.25, 0.125)


def objects_of(reply: Reply) -> list[Any]:
    """The response object, or those of the stream."""
    assert reply.status == 200, reply.raw
    streamed = reply.headers["Content-Type"].startswith("text/event-stream")
    return reply.events if streamed else [reply.json]


def text_of(reply: Reply, index: int = 0) -> str:
    """The text of one choice, of a whole or a streamed answer of either endpoint."""
    objects = objects_of(reply)
    choices = [choice for one in objects for choice in one["choices"] if choice["index"] == index]
    return "".join(_text(choice) for choice in choices)


def _text(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    said: dict[str, Any] = choice["delta"] if "delta" in choice else choice["message"]
    return str(said.get("content", ""))


def finish_of(reply: Reply, index: int = 0) -> list[str]:
    objects = objects_of(reply)
    choices = [choice for one in objects for choice in one["choices"] if choice["index"] == index]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


# ---- the shapes


@pytest.mark.fault("SPLIT-3")
async def test_a_whole_completion(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    play(pair, tokenizer.encode("the sea and", special=False))
    async with serve(pair) as front:
        reply = await front.complete({"max_tokens": 3})
        body = reply.json
        assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
        assert body.pop("id").startswith("cmpl-")
        assert isinstance(body.pop("created"), int)
        prompt = len(tokenizer.encode("The machine"))
        text = tokenizer.decode(tokenizer.encode("the sea and", special=False)[:3])
        assert body == {
            "object": "text_completion",
            "model": "tiny",
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3},
        }
        front.expect_idle()


@pytest.mark.fault("SPLIT-3")
async def test_a_whole_chat(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    play(pair, tokenizer.encode("sea", special=False))
    async with serve(pair) as front:
        body = (await front.chat({"max_tokens": 1})).json
        first = tokenizer.decode(tokenizer.encode("sea", special=False)[:1])
        assert body["object"] == "chat.completion"
        assert body["id"].startswith("chatcmpl-")
        assert body["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": first, "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ]


async def test_a_streamed_completion(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the sea", special=False)[:2]
    play(pair, ids)
    async with serve(pair) as front:
        reply = await front.complete({"max_tokens": 2, "stream": True})
        first, last = reply.events
        assert first["object"] == "text_completion"
        assert first["choices"] == [
            {"index": 0, "text": tokenizer.decode(ids[:1]), "logprobs": None, "finish_reason": None}
        ]
        assert last["choices"][0]["finish_reason"] == "length"
        assert {one["id"] for one in reply.events} == {first["id"]}
        assert "usage" not in first
        assert reply.headers["Cache-Control"] == "no-cache"


@pytest.mark.fault("STREAM-3")
async def test_a_streamed_chat_with_usage(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    play(pair, tokenizer.encode("the sea", special=False))
    async with serve(pair) as front:
        reply = await front.chat({"max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}})
        role, *texts, usage = reply.events
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert all(one["object"] == "chat.completion.chunk" for one in reply.events)
        assert [one["usage"] for one in (role, *texts)] == [None] * 3
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 2)
        assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 2


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_repeats_the_prompt_before_each_choice(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool
) -> None:
    play(pair, tokenizer.encode("x", special=False))
    ids = [tokenizer.encode("sea"), tokenizer.encode("The wind")]
    async with serve(pair) as front:
        for prompt in (["sea", "The wind"], ids):
            asked = {"prompt": prompt, "max_tokens": 1, "echo": True, "stream": stream}
            reply = await front.complete(asked)
            assert [text_of(reply, 0), text_of(reply, 1)] == ["seax", "The windx"]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_prompt_gets_n_choices_with_seeds_of_their_own(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool
) -> None:
    play(pair, tokenizer.encode("xy", special=False))
    async with serve(pair) as front:
        asked = {"prompt": [[5, 6], [7]], "n": 2, "seed": 10, "max_tokens": 2, "stream": stream}
        reply = await front.complete(asked | ({"stream_options": {"include_usage": True}} if stream else {}))
        assert [text_of(reply, index) for index in range(4)] == ["xy"] * 4
        assert [finish_of(reply, index) for index in range(4)] == [["length"]] * 4
        usage = (reply.events[-1] if stream else reply.json)["usage"]
        assert usage == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
        starts = [leg.start for leg in pair[0].legs]
        assert [(start.prompt, start.sampling.seed) for start in starts] == [
            ([5, 6], 10), ([5, 6], 11), ([7], 12), ([7], 13),
        ]  # fmt: skip
        assert len({start.transfer for start in starts}) == 4


# ---- the legs


@pytest.mark.fault("SPLIT-2")
async def test_both_legs_leave_at_once_and_belong_together(serve: Serve, pair: Pair) -> None:
    prompt, token = pair
    async with serve(pair, request_timeout_seconds=30, stream_credit_tokens=8) as front:
        asked = {
            "prompt": [5, 6], "max_tokens": 7, "temperature": 0.5, "min_tokens": 2,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        answer = asyncio.create_task(front.complete(asked, {"X-Request-Id": "mine"}))
        one, other = await prompt.leg(), await token.leg()
        assert (one.start.phase, other.start.phase) == ("prompt", "token")
        assert one.start.transfer == other.start.transfer != ""
        assert (one.start.prompt_machine, other.start.prompt_machine) == ("", prompt.address)
        for start in (one.start, other.start):
            assert (start.request, start.prompt, start.generated, start.credit) == ("mine", [5, 6], [], 8)
            assert (start.sampling.max_tokens, start.sampling.temperature, start.sampling.min_tokens) == (
                7,
                0.5,
                2,
            )
            assert 29 < start.deadline_s <= 30
        one.send(70, end="stop")
        assert (await answer).status == 200


@pytest.mark.fault("STREAM-2")
@pytest.mark.parametrize(("max_tokens", "phases"), [(1, ["whole"]), (2, ["prompt", "token"])])
async def test_one_token_takes_one_machine(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, max_tokens: int, phases: list[str]
) -> None:
    play(pair, tokenizer.encode("xy", special=False))
    async with serve(pair) as front:
        reply = await front.complete({"max_tokens": max_tokens}, TRACE)
        assert [leg.start.phase for machine in pair for leg in machine.legs] == phases
        assert reply.json["usage"]["completion_tokens"] == max_tokens
        assert finish_of(reply) == ["length"]
        assert reply.json["splitwise"]["choices"][0]["split"] == (max_tokens == 2)


@pytest.mark.fault("STREAM-2")
@pytest.mark.parametrize("max_tokens", [1, 2, 17])
@pytest.mark.parametrize("stream", [False, True])
async def test_counts_are_exact(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, max_tokens: int, stream: bool
) -> None:
    play(pair, tokenizer.encode("abcdefg", special=False))
    async with serve(pair) as front:
        reply = await front.complete({"max_tokens": max_tokens, "stream": stream}, TRACE)
        trace = (reply.events[-1] if stream else reply.json)["splitwise"]
        assert text_of(reply) == ("abcdefg" * 3)[:max_tokens]
        assert len(trace["choices"][0]["token_ids"]) == max_tokens
        front.expect_idle()


@pytest.mark.fault("STREAM-3")
@pytest.mark.parametrize("first", ["prompt", "token"])
async def test_the_first_token_is_in_its_place_whoever_is_faster(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, first: str
) -> None:
    a, b, c = tokenizer.encode("abc", special=False)
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 3}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        if first == "prompt":
            prompt.send(a, end="handoff")
            token.tell(transfer=TRANSFER)
            token.send(b)
            token.send(c, end="length")
        else:
            token.tell(transfer=TRANSFER)
            token.send(b)
            token.send(c, end="length")
            await front.get("/healthz")  # the token machine's news has been read by now
            prompt.send(a, end="handoff")
        reply = await answer
        assert (text_of(reply), reply.json["usage"]["completion_tokens"]) == ("abc", 3)
        front.expect_idle()


async def test_the_first_token_goes_out_before_the_token_machine_has_said_anything(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    a, b = tokenizer.encode("ab", special=False)
    async with serve(pair) as front:
        opening = asyncio.create_task(front.open_stream({"max_tokens": 2}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        prompt.send(a, end="handoff")
        async with await opening as response:
            assert b'"text":"a"' in await response.content.readuntil(b"\n\n")
            token.send(b, end="length")
            assert b'"text":"b"' in await response.content.read()


async def test_a_first_token_that_ends_the_answer_cancels_the_token_leg(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 5}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        prompt.send(*tokenizer.encode("<|im_end|>"), end="stop")
        reply = await answer
        assert (text_of(reply), finish_of(reply)) == ("", ["stop"])
        assert reply.json["usage"]["completion_tokens"] == 1
        async with asyncio.timeout(5):
            await token.cancelled.wait()
        front.expect_idle()


# ---- text


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_token_is_counted_and_hidden(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool
) -> None:
    *_, end = ids = tokenizer.encode("ab<|im_end|>", special=False)
    play(pair, ids, end=end)
    async with serve(pair) as front:
        reply = await front.chat({"stream": stream}, TRACE)
        trace = (reply.events[-1] if stream else reply.json)["splitwise"]
        assert (text_of(reply), finish_of(reply)) == ("ab", ["stop"])
        assert trace["choices"][0]["token_ids"] == ids


async def test_the_text_of_a_stop_token_is_hidden_too(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("ab", special=False)
    play(pair, [a, a, b])
    async with serve(pair) as front:
        reply = await front.complete({"stop_token_ids": [b], "max_tokens": 9})
        assert (text_of(reply), finish_of(reply)) == ("aa", ["stop"])
        assert reply.json["usage"]["completion_tokens"] == 3


@pytest.mark.fault("STREAM-2")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        ("c", "ab", 3),
        (["cd"], "ab", 4),
        (["cde", "d"], "abc", 4),
        (["gab"], "abcdef", 9),
        (["xx", "a"], "", 1),
        (["zz"], "abcdefgabc", 10),
        (["ca"], "abcdefgabc", 10),
    ],
)
async def test_stop_strings_straddle_tokens_and_machines(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stop: Any, text: str, tokens: int, stream: bool
) -> None:
    play(pair, tokenizer.encode("abcdefg", special=False))
    async with serve(pair) as front:
        reply = await front.complete({"stop": stop, "max_tokens": 10, "stream": stream}, TRACE)
        trace = (reply.events[-1] if stream else reply.json)["splitwise"]
        assert text_of(reply) == text
        assert finish_of(reply) == ["length" if tokens == 10 else "stop"]
        assert len(trace["choices"][0]["token_ids"]) == tokens
        front.expect_idle()


async def test_a_stop_string_cancels_the_machines(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("ab", special=False)
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"stop": "b", "max_tokens": 500}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        prompt.send(a, end="handoff")
        token.send(b)
        assert text_of(await answer) == "a"
        async with asyncio.timeout(5):
            await token.cancelled.wait()


@pytest.mark.parametrize("machine", range(2))
async def test_a_character_split_between_the_machines_comes_whole(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, machine: int
) -> None:
    ids = tokenizer.encode("é!" if machine else "😀!", special=False)
    assert len(ids) > 2
    play(pair, ids)
    async with serve(pair) as front:
        reply = await front.complete({"max_tokens": len(ids), "stream": True})
        texts = [one["choices"][0]["text"] for one in reply.events]
        assert texts == ["é" if machine else "😀", "!"]


@pytest.mark.parametrize("stream", [False, True])
async def test_half_a_character_at_the_end_shows_as_in_a_full_decode(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool
) -> None:
    ids = tokenizer.encode("a😀", special=False)[:3]
    play(pair, ids)
    async with serve(pair) as front:
        reply = await front.complete({"max_tokens": 3, "stream": stream})
        assert text_of(reply) == tokenizer.decode(ids) == "a\ufffd"


# ---- logprobs


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_completions(serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool) -> None:
    ids = tokenizer.encode("a😀b", special=False)
    play(pair, ids)
    async with serve(pair) as front:
        reply = await front.complete({"max_tokens": len(ids), "logprobs": 2, "stream": stream})
        objects = objects_of(reply)
        merged: dict[str, list[Any]] = {}
        for one in objects:
            for name, values in one["choices"][0]["logprobs"].items():
                merged.setdefault(name, []).extend(values)
        assert merged["tokens"] == ["a", "\ufffd", "\ufffd", "\ufffd", "\ufffd", "b"]
        assert merged["token_logprobs"] == [-0.5] * 6
        assert merged["text_offset"] == [0, 1, 1, 1, 1, 2]
        assert merged["top_logprobs"][0] == {"a": -0.5, "b": -1.5}


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_chats(serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool) -> None:
    *_, end = ids = tokenizer.encode("aé<|im_end|>", special=False)
    play(pair, ids, end=end)
    async with serve(pair) as front:
        reply = await front.chat({"logprobs": True, "top_logprobs": 1, "stream": stream})
        objects = objects_of(reply)
        entries = [entry for one in objects for entry in _content(one)]
        assert [entry["bytes"] for entry in entries] == [[97], [0xC3], [0xA9], list(b"<|im_end|>")]
        assert entries[0]["token"] == "a"
        assert entries[0]["top_logprobs"] == [{"token": "a", "logprob": -0.5, "bytes": [97]}]


def _content(one: dict[str, Any]) -> list[Any]:
    """A chunk that only opens the message has no logprobs."""
    return list((one["choices"][0]["logprobs"] or {"content": []})["content"])


async def test_minus_infinity_is_written_as_the_api_does(
    serve: Serve, pair: Pair, tokenizer: Tokenizer
) -> None:
    (a,) = tokenizer.encode("a", special=False)
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 1, "logprobs": 1}))
        leg = await pair[0].leg()
        leg.tell((Token(a, float("-inf"), ((a + 1, float("-inf")),)),), end="length")
        assert (await answer).json["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]


# ---- the trace


@pytest.mark.parametrize("stream", [False, True])
async def test_the_trace_tells_machines_tokens_and_transfer(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool
) -> None:
    a, b = tokenizer.encode("ab", special=False)
    async with serve(pair) as front:
        asked = {"max_tokens": 2, "stream": stream}
        answer = asyncio.create_task(front.complete(asked, TRACE | {"X-Request-Id": "r-7"}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        prompt.send(a, end="handoff")
        token.tell(transfer=TRANSFER)
        token.send(b, end="length")
        reply = await answer
        assert (reply.events[-1] if stream else reply.json)["splitwise"] == {
            "request_id": "r-7",
            "choices": [
                {
                    "prompt_machine": "prompt-0",
                    "token_machine": "token-0",
                    "split": True,
                    "restarts": 0,
                    "token_ids": [a, b],
                    "kv": {
                        "mode": "layerwise",
                        "transport": "tcp",
                        "bytes": 4096,
                        "seconds": 0.25,
                        "visible_seconds": 0.125,
                    },
                }
            ],
        }


async def test_nobody_gets_a_trace_who_did_not_ask(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    play(pair, tokenizer.encode("ab", special=False))
    async with serve(pair) as front:
        for headers in (None, {"X-Splitwise-Trace": "0"}):
            assert "splitwise" not in (await front.complete({"max_tokens": 2}, headers)).json
        events: Sequence[Any] = (await front.complete({"max_tokens": 2, "stream": True})).events
        assert all("splitwise" not in one for one in events)
