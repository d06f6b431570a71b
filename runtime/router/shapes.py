"""The OpenAI API's response objects, whole and in chunks.

Chunks are put together from bytes made once per choice, because there is one for every token of every
stream; all else is plain dictionaries.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from runtime.router.answer import Answer
from runtime.router.choice import Choice
from runtime.router.logprobs import chat_logprobs, completion_logprobs
from runtime.router.output import Piece
from runtime.router.trace import trace_of
from runtime.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode
_FINISH = {None: b"null", "stop": b'"stop"', "length": b'"length"'}


class Shape:
    """Writes one answer. `traced`: with the `splitwise` field on its last object."""

    def __init__(self, answer: Answer, tokenizer: Tokenizer, *, traced: bool) -> None:
        self._answer = answer
        self._ask = answer.ask
        self._chat = answer.ask.kind == "chat"
        self._tokenizer = tokenizer
        self._traced = traced
        prefix, whole, chunk = (
            ("chatcmpl", "chat.completion", "chat.completion.chunk")
            if self._chat
            else ("cmpl", "text_completion", "text_completion")
        )
        about = {"created": int(time.time()), "model": answer.ask.model}
        id = f"{prefix}-{secrets.token_hex(12)}"
        self._whole = {"id": id, "object": whole, **about}
        self._head = b"data: " + _encode({"id": id, "object": chunk, **about})[:-1] + b',"choices":['
        self._before = b',"delta":{"content":' if self._chat else b',"text":'
        self._behind = b'},"logprobs":' if self._chat else b',"logprobs":'
        self._usage_null = b',"usage":null' if self._ask.include_usage else b""
        self._plain = self._behind + b'null,"finish_reason":null}]' + self._usage_null + b"}\n\n"
        self._heads = [b'%b{"index":%d%b' % (self._head, n, self._before) for n in range(self._ask.choices)]

    # ---- chunks

    def opening(self, choice: Choice) -> bytes:
        """What a choice's chunks begin with: the role, or the prompt if it is echoed."""
        if self._chat:
            role = b'%b{"index":%d,"delta":{"role":"assistant","content":""' % (self._head, choice.index)
            return role + self._plain
        if self._ask.echo:
            return self._heads[choice.index] + _encode(self._ask.prompt_of(choice.index).text) + self._plain
        return b""

    def chunk(self, choice: Choice, piece: Piece | None) -> bytes:
        """New text of a choice, and its end if it has finished."""
        text = _encode(piece.text if piece else "")
        if choice.finish is None and self._ask.sampling.logprobs < 0:
            return self._heads[choice.index] + text + self._plain
        return b"".join(
            (
                self._heads[choice.index],
                text,
                self._behind,
                _encode(self._logprobs([piece] if piece else [])),
                b',"finish_reason":',
                _FINISH[choice.finish],
                b"}]",
                self._usage_null,
                b"" if self._ask.include_usage or not self._answer.is_complete else self._trace(),
                b"}\n\n",
            )
        )

    def closing(self) -> bytes:
        """What follows when all choices have finished."""
        if not self._ask.include_usage:
            return DONE
        return self._head + b'],"usage":' + _encode(self._usage()) + self._trace() + b"}\n\n" + DONE

    # ---- whole

    def whole(self, pieces: Sequence[Sequence[Piece]]) -> bytes:
        """The response object; `pieces` of each choice."""
        choice = self._chat_choice if self._chat else self._completion_choice
        body = self._whole | {
            "choices": [choice(one, pieces[one.index]) for one in self._answer.choices],
            "usage": self._usage(),
        }
        return _encode(body)[:-1] + self._trace() + b"}"

    def _completion_choice(self, choice: Choice, pieces: Sequence[Piece]) -> dict[str, Any]:
        echo = self._ask.prompt_of(choice.index).text if self._ask.echo else ""
        return {
            "index": choice.index,
            "text": echo + "".join(piece.text for piece in pieces),
            "logprobs": self._logprobs(pieces),
            "finish_reason": choice.finish,
        }

    def _chat_choice(self, choice: Choice, pieces: Sequence[Piece]) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(pieces),
            "finish_reason": choice.finish,
        }

    # ---- parts of both

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if self._ask.sampling.logprobs < 0:
            return None
        return (chat_logprobs if self._chat else completion_logprobs)(self._tokenizer, pieces)

    def _usage(self) -> dict[str, int]:
        prompt, output = self._ask.prompt_tokens, self._answer.output_tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _trace(self) -> bytes:
        return b',"splitwise":' + _encode(trace_of(self._answer)) if self._traced else b""
