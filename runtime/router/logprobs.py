"""Logprobs as each endpoint shows them."""

from collections.abc import Sequence
from typing import Any

from runtime.router.output import Piece
from runtime.tokenizer import Tokenizer
from runtime.wire import Token

LEAST = -9999.0  # JSON has no minus infinity; this is what the OpenAI API writes instead


def completion_logprobs(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> dict[str, Any]:
    """The four parallel lists of `/v1/completions`; the chosen token is always among the top ones."""
    tokens = [token for piece in pieces for token in piece.tokens]
    return {
        "tokens": [tokenizer.text_of(token.id) for token in tokens],
        "token_logprobs": [max(token.logprob, LEAST) for token in tokens],
        "top_logprobs": [_top(tokenizer, token) for token in tokens],
        "text_offset": [offset for piece in pieces for offset in piece.offsets],
    }


def chat_logprobs(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> dict[str, Any]:
    """The content list of `/v1/chat/completions`."""
    return {
        "content": [
            _entry(tokenizer, token.id, token.logprob)
            | {"top_logprobs": [_entry(tokenizer, id, logprob) for id, logprob in token.top]}
            for piece in pieces
            for token in piece.tokens
        ],
        "refusal": None,
    }


def _top(tokenizer: Tokenizer, token: Token) -> dict[str, float]:
    top: dict[str, float] = {}
    for id, logprob in (*token.top, (token.id, token.logprob)):
        top.setdefault(tokenizer.text_of(id), max(logprob, LEAST))  # two tokens may show as one text
    return top


def _entry(tokenizer: Tokenizer, id: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.bytes_of(id)
    return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LEAST), "bytes": list(raw)}
