"""Asking a running deployment: `chat`, and the demonstration's questions and comparison."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from io import StringIO
from typing import Any

import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from local import demo
from local.ask import Answer, ChoiceTrace, ask
from local.chat import chat
from local.rundir import RunFailed

KV = {"mode": "layerwise", "transport": "shm", "bytes": 28e6, "seconds": 5.6, "visible_seconds": 0.016}
SERVED = {
    "prompt_machine": "prompt-0",
    "token_machine": "token-0",
    "split": True,
    "restarts": 0,
    "token_ids": [5, 6, 7],
    "kv": KV,
}


def chunk(text: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
        "choices": choices,
        **more,
    }


TRACED = {"request_id": "1", "choices": [SERVED]}
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


@asynccontextmanager
async def endpoint(
    *events: dict[str, Any], status: int = 200
) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers every chat with these events; and the bodies it got, headers beside them."""
    got: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        got.append(await request.json() | {"trace": request.headers.get("X-Splitwise-Trace")})
        if status != 200:
            return web.json_response(events[0], status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    application = web.Application()
    application.router.add_post("/v1/chat/completions", answer)
    async with TestServer(application) as server:
        yield f"http://{server.host}:{server.port}", got


async def asked(*events: dict[str, Any], hear: Callable[[str], None] = lambda text: None) -> Answer:
    async with (
        endpoint(*events) as (url, got),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = await ask(client, "m", "why?", max_tokens=9, hear=hear)
        assert got[0]["trace"] == "1"
        assert (got[0]["temperature"], got[0]["max_tokens"], got[0]["stream"]) == (0, 9, True)
        return answer


async def test_an_answer_holds_text_trace_and_usage() -> None:
    heard: list[str] = []
    answer = await asked(chunk("be"), chunk("cause"), chunk(splitwise=TRACED, usage=USAGE), hear=heard.append)
    assert heard == ["be", "cause"]
    assert answer.text == "because"
    assert answer.served == ChoiceTrace.model_validate(SERVED)
    assert answer.prompt_tokens == 11
    assert answer.tbt is not None
    assert answer.ttft > 0


async def test_a_single_token_has_no_time_between_tokens() -> None:
    trace = {"request_id": "1", "choices": [SERVED | {"token_ids": [5]}]}
    assert (await asked(chunk("yes", splitwise=trace))).tbt is None


@pytest.mark.parametrize("events", [(chunk("no trace"),), (chunk(splitwise=TRACED),)])
async def test_an_answer_without_trace_or_text_is_refused(events: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(ValueError, match="empty or came without a trace"):
        await asked(*events)


def answer(text: str = "yes", **served: Any) -> Answer:
    return Answer(text, ChoiceTrace.model_validate(SERVED | served), prompt_tokens=11, ttft=0.25, tbt=0.1)


def test_facts_of_a_split_answer() -> None:
    assert demo.facts(answer()) == (
        "prompt-0 → token-0, 28.0 MB of KV-cache over shm layer by layer behind 5600 ms of compute;"
        " there 16 ms after the last layer\n"
        "  11 prompt tokens, 3 output tokens; TTFT 250 ms, TBT 100 ms"
    )


def test_facts_say_only_what_is_known() -> None:
    serialized = KV | {"mode": "serialized", "visible_seconds": -1}
    text = demo.facts(replace(answer(kv=serialized), tbt=None))
    assert "KV-cache over shm in one piece, 5600 ms\n" in text
    assert text.endswith("TTFT 250 ms")
    assert demo.facts(answer(kv=None)).startswith("token-0 alone\n")


def test_equal_answers_differ_in_nothing() -> None:
    assert demo.differences([answer()], [answer(prompt_machine="mixed-0", kv=None)]) == []


def test_other_text_and_other_token_ids_are_differences() -> None:
    found = demo.differences([answer(), answer()], [answer("no"), answer(token_ids=[5, 6, 8])])
    assert len(found) == 2
    assert "answer 1, text: split 'yes', unsplit 'no'" in found[0]
    assert "answer 2, token ids: split [5, 6, 7], unsplit [5, 6, 8]" in found[1]


def test_an_answer_that_was_not_split_is_no_proof() -> None:
    assert demo.unsplit([answer(), answer(split=False), answer(kv=None)]) == [
        "answer 2 was not split: token-0 did all of it",
        "answer 3 was not split: token-0 did all of it",
    ]


def test_the_letter_is_long_enough_for_layers() -> None:
    """Byte-level tokenizers never join words with each other or with marks."""
    assert len(re.findall(r"\w+|[^\w\s]", demo.LETTER)) > 512


def talk(url: str, prompt: str | None, questions: str = "") -> str:
    said = StringIO()
    console = Console(file=said, width=200)
    lines = iter(questions.splitlines())
    console.input = lambda *arguments, **options: next(lines, "")  # type: ignore[method-assign]
    chat(url, "m", prompt, max_tokens=5, console=console)
    return said.getvalue()


async def test_chat_prints_the_answer_as_it_is() -> None:
    async with endpoint(chunk("[bold]b"), chunk("e:cause:"), chunk(usage=USAGE)) as (url, got):
        assert await asyncio.to_thread(talk, url, "why?") == "[bold]be:cause:\n"
    assert got[0]["messages"] == [{"role": "user", "content": "why?"}]


async def test_chat_remembers_the_conversation() -> None:
    async with endpoint(chunk("yes")) as (url, got):
        await asyncio.to_thread(talk, url, None, "one?\ntwo?")
    assert [message["content"] for message in got[1]["messages"]] == ["one?", "yes", "two?"]


@pytest.mark.parametrize("status", [400, 200])
async def test_chat_tells_the_servers_error(status: int) -> None:
    async with endpoint({"error": {"message": "too long"}}, status=status) as (url, _):
        with pytest.raises(RunFailed, match="too long"):
            await asyncio.to_thread(talk, url, "why?")


async def test_chat_says_when_the_answer_breaks_off() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(RunFailed, match="broke off in mid-answer"):
            await asyncio.to_thread(talk, f"http://{host}:{port}", "why?")


def test_chat_without_a_server_is_a_sentence() -> None:
    with pytest.raises(RunFailed, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        talk("http://127.0.0.1:1", "why?")
