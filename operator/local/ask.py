"""A question to a running deployment through the official OpenAI client, with what the router tells of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

TRACE_HEADER = {"X-Splitwise-Trace": "1"}


class KvTrace(BaseModel):
    """How the KV-cache travelled. visible_seconds: after the last layer was computed; -1 if not known."""

    mode: str
    transport: str
    bytes: int
    seconds: float
    visible_seconds: float


class ChoiceTrace(BaseModel):
    """Who served one choice."""

    prompt_machine: str | None
    token_machine: str | None
    split: bool
    restarts: int
    token_ids: tuple[int, ...]
    kv: KvTrace | None = None


class Trace(BaseModel):
    """What the router adds to an answer when the request asks for a trace."""

    request_id: str
    choices: tuple[ChoiceTrace, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its trace, and its times in seconds by the client's clock.

    ttft: to the first piece of text. tbt: from then on, per token; None for a single token.
    """

    text: str
    served: ChoiceTrace
    prompt_tokens: int
    ttft: float
    tbt: float | None


async def ask(
    client: AsyncOpenAI, model: str, question: str, *, max_tokens: int, hear: Callable[[str], None]
) -> Answer:
    """Ask greedily and stream; `hear` gets the text as it comes. Raises openai.APIError or ValueError."""
    started = time.monotonic()
    heard: list[tuple[float, str]] = []
    trace: Trace | None = None
    prompt_tokens = 0
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=TRACE_HEADER,
    )
    async for chunk in stream:
        text = "".join(choice.delta.content or "" for choice in chunk.choices)
        if text:
            heard.append((time.monotonic(), text))
            hear(text)
        trace = _trace(chunk) or trace
        prompt_tokens = chunk.usage.prompt_tokens if chunk.usage else prompt_tokens
    if trace is None or not heard:
        raise ValueError("the answer is empty or came without a trace")
    served = trace.choices[0]
    gaps = len(served.token_ids) - 1
    return Answer(
        text="".join(text for _, text in heard),
        served=served,
        prompt_tokens=prompt_tokens,
        ttft=heard[0][0] - started,
        tbt=(heard[-1][0] - heard[0][0]) / gaps if gaps > 0 else None,
    )


def _trace(chunk: ChatCompletionChunk) -> Trace | None:
    found = (chunk.model_extra or {}).get("splitwise")
    return Trace.model_validate(found) if found else None
