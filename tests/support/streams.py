"""Streamed completions from a deployment's router, for tests in which nothing may cut one."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp

from cluster.client import Client
from cluster.expect import condition

PROMPT = "once upon a time there was a machine that could not forget"
TOKENS = 40
SECONDS = 120.0
Answer = tuple[str, str]
"""The text, and why it ended."""


async def router(kube: Client, name: str) -> str:
    """The URL of a ready router of the deployment `name`."""
    chosen = f"splitwise.dev/deployment={name},splitwise.dev/pool=router"
    for pod in await kube.list("pods", selector=chosen):
        if condition("Ready")(pod) and "deletionTimestamp" not in pod["metadata"]:
            return f"http://{pod['status']['podIP']}:8000"
    raise AssertionError("no router is ready")


async def stream(url: str) -> Answer:
    """One greedy completion, streamed to its end; an AssertionError if it tells of an error."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    text, finish = "", ""
    patience = aiohttp.ClientTimeout(total=SECONDS)
    async with (
        aiohttp.ClientSession(timeout=patience) as session,
        session.post(f"{url}/v1/completions", json=body | {"ignore_eos": True}) as answer,
    ):
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                text += choice["text"]
                finish = choice["finish_reason"] or finish
    return text, finish


@contextlib.asynccontextmanager
async def streaming(url: str, expected: Answer, *, clients: int = 3) -> AsyncIterator[None]:
    """While the block runs, clients stream without a pause; the first other answer ends it with an error."""
    over = asyncio.Event()

    async def client() -> None:
        count = 0
        while count == 0 or not over.is_set():
            assert await stream(url) == expected
            count += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(client())
        try:
            yield
        finally:
            over.set()
