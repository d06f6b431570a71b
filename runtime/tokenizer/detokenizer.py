"""Output tokens to text, one token at a time.

A token of a byte-level vocabulary may hold part of a character; such bytes wait for the rest. Everything put
out, in a row, equals decoding all tokens at once behind the prompt: a first token that begins with a space
keeps it, broken bytes become U+FFFD, special tokens are left out.
"""

import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer as Encoder

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """The state of one output."""

    def push(self, token: int) -> str:
        """The text that is complete now; may be empty."""

    def flush(self) -> str:
        """What still waits at the end, as U+FFFD."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every token. `skipped`: special ones; `fallback`: those that stand for one byte each.
    `texts` has the text of tokens that are whole characters, None for others."""

    bytes_of: Sequence[bytes]
    texts: Sequence[str | None]
    skipped: frozenset[int]
    fallback: frozenset[int]
    detokenizer: Callable[["Vocabulary"], Detokenizer]


class ByteLevel:
    """Every token is bytes; the text is their concatenation read as UTF-8."""

    __slots__ = ("_bytes_of", "_decoder", "_texts", "_whole")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._decoder = _UTF8("replace")
        self._bytes_of = vocabulary.bytes_of
        self._texts = vocabulary.texts
        self._whole = True

    def push(self, token: int) -> str:
        if token >= len(self._texts):
            return ""
        text = self._texts[token]
        if text is None or not self._whole:
            text = self._decoder.decode(self._bytes_of[token])
            self._whole = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class ByteFallback:
    """Tokens are text, except those that stand for one byte. A run of these is one unit: if it isn't UTF-8 as
    a whole, each of its bytes is a U+FFFD, so it waits for its end."""

    __slots__ = ("_run", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._run = bytearray()

    def push(self, token: int) -> str:
        vocabulary = self._vocabulary
        if token in vocabulary.fallback:
            self._run += vocabulary.bytes_of[token]
            return ""
        if token in vocabulary.skipped or token >= len(vocabulary.bytes_of):
            return ""
        return self.flush() + vocabulary.bytes_of[token].decode("utf-8", "replace")

    def flush(self) -> str:
        run, self._run = self._run, bytearray()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)


def vocabulary_of(encoder: Encoder) -> Vocabulary:
    """Read a tokenizer's table. Raises ValueError if its decoder is of neither kind."""
    steps = _steps(encoder)
    kinds = {step["type"] for step in steps}
    added = encoder.get_added_tokens_decoder()
    skipped = frozenset(id for id, token in added.items() if token.special)
    tokens = [""] * (max(encoder.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    for token, id in encoder.get_vocab(with_added_tokens=True).items():
        tokens[id] = token
    if kinds == {"ByteLevel"}:
        alphabet = byte_alphabet()
        table = [b"" if id in skipped else _level_bytes(token, alphabet) for id, token in enumerate(tokens)]
        return Vocabulary(table, _texts(table), skipped, frozenset(), ByteLevel)
    if "ByteFallback" in kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        bytes_of = [_byte(token) for token in tokens]
        fallback = frozenset(id for id, byte in enumerate(bytes_of) if byte is not None)
        table = [byte or _replaced(token, steps) for token, byte in zip(tokens, bytes_of, strict=True)]
        return Vocabulary(table, _texts(table), skipped, fallback, ByteFallback)
    raise ValueError(
        f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is not supported: "
        "byte-level and byte-fallback tokenizers are"
    )


def byte_alphabet() -> dict[str, int]:
    """The visible character that stands for each byte in a byte-level vocabulary: printable Latin-1 for
    itself, the next character from U+0100 for every other byte."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _level_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:  # an added token written as plain text
        return token.encode()


def _texts(table: Sequence[bytes]) -> list[str | None]:
    texts: list[str | None] = []
    for raw in table:
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError:
            texts.append(None)
    return texts


def _byte(token: str) -> bytes | None:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            return None
    return None


def _replaced(token: str, steps: Sequence[Mapping[str, Any]]) -> bytes:
    for step in steps:
        if step["type"] == "Replace":
            token = token.replace(step["pattern"]["String"], step["content"])
    return token.encode()


def _steps(encoder: Encoder) -> list[dict[str, Any]]:
    if encoder.decoder is None:
        return []
    decoder = json.loads(encoder.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]
