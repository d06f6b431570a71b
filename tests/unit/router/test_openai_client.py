"""The official client reads everything we write."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from fake_machine import FakeMachine
from front import Front, Serve, play
from runtime.tokenizer import Tokenizer

Pair = tuple[FakeMachine, FakeMachine]


@asynccontextmanager
async def client_of(front: Front) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{front.url}/v1", max_retries=0) as client:
        yield client


async def test_chats(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    play(pair, tokenizer.encode("abc", special=False))
    async with serve(pair) as front, client_of(front) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=3, n=2,
            logprobs=True, top_logprobs=2,
        )  # fmt: skip
        assert [choice.message.content for choice in answer.choices] == ["abc", "abc"]
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert [len(entry.top_logprobs) for entry in logprobs.content] == [2, 2, 2]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 6


async def test_streamed_chats(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    play(pair, tokenizer.encode("abc", special=False))
    async with serve(pair) as front, client_of(front) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas) == "abc"
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 3


async def test_completions(serve: Serve, pair: Pair, tokenizer: Tokenizer) -> None:
    play(pair, tokenizer.encode("abc", special=False))
    async with serve(pair) as front, client_of(front) as client:
        answer = await client.completions.create(model="tiny", prompt=["x", "y"], max_tokens=3, logprobs=2)
        assert [choice.text for choice in answer.choices] == ["abc", "abc"]
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.text_offset == [0, 1, 2]
        stream = await client.completions.create(model="tiny", prompt="x", max_tokens=3, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "abc"


async def test_models(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front, client_of(front) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "splitwise"


async def test_errors(serve: Serve, pair: Pair) -> None:
    async with serve(pair[:1], wait_for_machines_seconds=0) as front, client_of(front) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model="tiny", prompt="x", temperature=5)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="x")
        with pytest.raises(openai.InternalServerError) as none:
            await client.completions.create(model="tiny", prompt="x")
        assert (none.value.status_code, none.value.code) == (503, "no_capacity")


async def test_an_error_in_mid_stream_is_raised(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front, client_of(front) as client:
        stream = client.completions.create(model="tiny", prompt="x", max_tokens=3, stream=True)

        async def read() -> None:
            async for chunk in await stream:
                assert chunk.choices[0].text

        reading = asyncio.create_task(read())
        prompt, token = await pair[0].leg(), await pair[1].leg()
        prompt.send(80, end="handoff")
        await front.seen("splitwise_ttft_seconds_count", 1)
        token.fail("engine_failure", "out of luck")
        with pytest.raises(openai.APIError, match="out of luck"):
            await reading
