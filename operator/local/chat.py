"""`splitwise chat`: talk to an OpenAI-compatible endpoint, one question or a conversation."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from rich.console import Console

from local.rundir import RunFailed

_QUIET_SECONDS = 120.0


def chat(endpoint: str, model: str, prompt: str | None, *, max_tokens: int, console: Console) -> None:
    """Ask `prompt` and print the answer as it comes; without one, read questions until end of input."""
    said: list[dict[str, str]] = []
    if prompt is not None:
        asyncio.run(_turn(endpoint, model, [_user(prompt)], max_tokens=max_tokens, console=console))
        return
    console.print(f"{model} at {endpoint}; an empty line or Ctrl-D ends", highlight=False)
    while question := _question(console):
        said.append(_user(question))
        answer = asyncio.run(_turn(endpoint, model, said, max_tokens=max_tokens, console=console))
        said.append({"role": "assistant", "content": answer})


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _question(console: Console) -> str:
    try:
        return console.input("[bold]> [/]").strip()
    except (EOFError, KeyboardInterrupt):
        console.print()
        return ""


async def _turn(
    endpoint: str, model: str, messages: list[dict[str, str]], *, max_tokens: int, console: Console
) -> str:
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": max_tokens, "temperature": 0}
    answer = ""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_QUIET_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{endpoint}/v1/chat/completions", json=body) as response,
        ):
            async for chunk in _chunks(response):
                for choice in chunk["choices"]:
                    text = choice["delta"].get("content") or ""
                    answer += text
                    console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    except aiohttp.ClientConnectorError as error:
        raise RunFailed(f"{endpoint} cannot be reached: {error.os_error.strerror}; is it still up?") from None
    except TimeoutError:
        raise RunFailed(f"{endpoint} has said nothing for {_QUIET_SECONDS:g} s") from None
    except aiohttp.ClientError:
        raise RunFailed(f"{endpoint} broke off in mid-answer; ask again, or see: splitwise logs") from None
    console.print()
    return answer


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event. Raises RunFailed with the server's sentence for an error."""
    if response.status != 200:
        raise RunFailed(_sentence(await response.text()))
    async for line in response.content:
        data = line.decode().strip()
        if not data.startswith("data:") or data == "data: [DONE]":
            continue
        event: dict[str, Any] = json.loads(data.removeprefix("data:"))
        if "error" in event:
            raise RunFailed(_sentence(json.dumps(event)))
        yield event


def _sentence(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:500] or "an error without words"
