"""What a client asks for, checked and in token ids: the inside form of both endpoints' bodies."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, structs

from runtime.router.parameters import INT64, ChatBody, CompletionBody, Sampled, read_body
from runtime.router.problems import Problem
from runtime.tokenizer import TemplateRefusal, Tokenizer
from runtime.wire import Sampling

COMPLETION_TOKENS = 16
MAX_CHOICES = 512
MAX_BYTES_PER_TOKEN = 64
_ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; `text` is what `echo` repeats."""

    ids: list[int]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as dispatch needs it. Every prompt has `n` choices, numbered through; a choice's sampling is
    `sampling` with the seed moved on by its number. `sampling.max_tokens` 0: what the context leaves."""

    kind: Literal["completion", "chat"]
    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    n: int = 1
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    echo: bool = False

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)

    def prompt_of(self, choice: int) -> Prompt:
        return self.prompts[choice // self.n]

    def sampling_of(self, choice: int, context: int) -> Sampling:
        """The choice's own seed, and max_tokens where the client named none."""
        seed = (self.sampling.seed + choice) % INT64
        max_tokens = self.sampling.max_tokens or context - len(self.prompt_of(choice).ids)
        return structs.replace(self.sampling, seed=seed, max_tokens=max_tokens)


class Reader:
    """Reads bodies for one model."""

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer

    async def completion(self, raw: bytes) -> Ask:
        """Raises Problem."""
        body = read_body(raw, CompletionBody)
        self._check_model(body)
        if body.echo and body.logprobs is not UNSET:
            raise Problem("logprobs with echo is not supported: prompts get no logprobs", param="logprobs")
        ask = Ask(
            kind="completion",
            prompts=tuple([await self._prompt(prompt, body.echo) for prompt in _prompts(body.prompt)]),
            sampling=self._sampling(
                body,
                max_tokens=COMPLETION_TOKENS if body.max_tokens is UNSET else body.max_tokens,
                logprobs=-1 if body.logprobs is UNSET else body.logprobs,
            ),
            echo=body.echo,
            **_shared(body),
        )
        return _bounded(ask)

    async def chat(self, raw: bytes) -> Ask:
        """Raises Problem."""
        body = read_body(raw, ChatBody)
        self._check_model(body)
        if not body.logprobs and body.top_logprobs is not UNSET:
            raise Problem("top_logprobs needs logprobs: true", param="top_logprobs")
        top = 0 if body.top_logprobs is UNSET else body.top_logprobs
        try:
            text = await self._tokenizer.chat_text_aside(_messages(body.messages))
        except TemplateRefusal as refusal:
            raise Problem(f"the chat template refuses these messages: {refusal}", param="messages") from None
        except ValueError as error:
            raise Problem(str(error), param="messages") from None
        ask = Ask(
            kind="chat",
            prompts=(Prompt(await self._encode(text, "messages", special=False)),),
            sampling=self._sampling(
                body, max_tokens=_chat_max_tokens(body), logprobs=top if body.logprobs else -1
            ),
            **_shared(body),
        )
        return _bounded(ask)

    def _check_model(self, body: Sampled) -> None:
        if body.model != self._model:
            raise Problem(
                f"the model {body.model!r} does not exist; {self._model!r} is served here",
                param="model",
                reason="model_not_found",
                status=404,
            )

    async def _prompt(self, prompt: str | list[int], echo: bool) -> Prompt:
        if isinstance(prompt, str):
            return Prompt(await self._encode(prompt, "prompt", special=True), prompt)
        self._check_ids(prompt, "prompt")
        return Prompt(prompt, self._tokenizer.decode(prompt) if echo else "")

    async def _encode(self, text: str, param: str, *, special: bool) -> list[int]:
        """Long texts are refused before the next one is looked at, the longest without being encoded."""
        context = self._tokenizer.context_tokens
        if context and len(text) > context * MAX_BYTES_PER_TOKEN:
            raise too_long(f"{len(text)} characters of text", context, param)
        ids = await self._tokenizer.encode_aside(text, special=special)
        if context and len(ids) > context:
            raise too_long(f"{len(ids)} prompt tokens", context, param)
        return ids

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        for id in ids:
            if not 0 <= id < self._tokenizer.vocabulary:
                raise Problem(
                    f"{param} holds token id {id}; they go from 0 to {self._tokenizer.vocabulary - 1}",
                    param=param,
                )

    def _sampling(self, body: Sampled, *, max_tokens: int, logprobs: int) -> Sampling:
        self._check_ids(body.stop_token_ids, "stop_token_ids")
        self._check_ids(list(body.logit_bias), "logit_bias")
        if max_tokens and body.min_tokens > max_tokens:
            raise Problem(f"min_tokens must be at most max_tokens ({max_tokens})", param="min_tokens")
        return Sampling(
            max_tokens=max_tokens,
            seed=secrets.randbits(63) if body.seed is UNSET else body.seed % INT64,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(body.top_k, 0),
            min_p=body.min_p,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias=body.logit_bias,
            min_tokens=body.min_tokens,
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            logprobs=logprobs,
        )


def check_context(ask: Ask, context: int) -> None:
    """Raises Problem if a prompt and what may follow it cannot fit. `context` in tokens."""
    for prompt in ask.prompts:
        wanted = ask.sampling.max_tokens or max(1, ask.sampling.min_tokens)
        if len(prompt.ids) + wanted > context:
            param = "messages" if ask.kind == "chat" else "prompt"
            raise too_long(f"{len(prompt.ids)} prompt tokens and {wanted} more to produce", context, param)


def too_long(what: str, context: int, param: str) -> Problem:
    return Problem(
        f"this model's context is {context} tokens; {what} exceed it: shorten the prompt or lower max_tokens",
        param=param,
        reason="context_length_exceeded",
    )


def _shared(body: Sampled) -> dict[str, Any]:
    options = body.stream_options
    if options is not UNSET and not body.stream:
        raise Problem("stream_options needs stream: true", param="stream_options")
    return {
        "model": body.model,
        "n": body.n,
        "stop": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
        "stream": body.stream,
        "include_usage": options is not UNSET and options.include_usage,
    }


def _bounded(ask: Ask) -> Ask:
    if ask.choices > MAX_CHOICES:
        raise Problem(f"{ask.choices} choices; at most {MAX_CHOICES} are made of one request", param="n")
    if not all(prompt.ids for prompt in ask.prompts):
        raise Problem("a prompt is empty: give at least one token", param="prompt")
    return ask


def _chat_max_tokens(body: ChatBody) -> int:
    named = {n for n in (body.max_tokens, body.max_completion_tokens) if n is not UNSET}
    if len(named) > 1:
        raise Problem("max_tokens and max_completion_tokens differ; give one", param="max_completion_tokens")
    return named.pop() if named else 0


def _prompts(prompt: Any) -> Sequence[str | list[int]]:
    """A string, strings, token ids, or lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, str) for part in prompt):
            return prompt
        if _ids(prompt):
            return [prompt]
        if all(_ids(part) for part in prompt):
            return prompt
    raise Problem(
        "prompt must be a string, a list of strings, token ids, or a list of lists of them", param="prompt"
    )


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(id) is int for id in value)


def _messages(given: Sequence[Any]) -> list[Mapping[str, str]]:
    return [_message(message, f"messages[{at}]") for at, message in enumerate(given)]


def _message(message: Any, where: str) -> Mapping[str, str]:
    """Role and text. Templates of open models know no developer: it is what they call system."""
    if not isinstance(message, dict):
        raise Problem(f"{where} must be an object with role and content", param="messages")
    role = message.get("role")
    if role not in _ROLES:
        raise Problem(f"{where}.role must be one of {', '.join(_ROLES)}, not {role!r}", param="messages")
    for name, value in message.items():
        if name not in ("role", "content") and value:
            raise Problem(
                f"{where}.{name} is not supported", param="messages", reason="unsupported_parameter"
            )
    return {
        "role": "system" if role == "developer" else role,
        "content": _content(message.get("content"), where),
    }


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Problem(f"{where}.content must be a string or a list of text parts", param="messages")
    for at, part in enumerate(content):
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise Problem(
                f"{where}.content[{at}] must be a text part; others are not supported", param="messages"
            )
        if foreign := sorted(map(str, part.keys() - {"type", "text"})):
            raise Problem(
                f"{where}.content[{at}].{foreign[0]} is not supported; leave it out",
                param="messages",
                reason="unsupported_parameter",
            )
    return "".join(part["text"] for part in content)
