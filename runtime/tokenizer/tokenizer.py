"""One model's tokenizer, whatever file it came from."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Encoder

from runtime.tokenizer.detokenizer import Detokenizer, vocabulary_of
from runtime.tokenizer.template import ChatTemplate

LONG_TEXT = 32 * 1024
LONG_CHAT = 200


class Tokenizer:
    """Encodes and decodes. `end_tokens` end an answer; `context_tokens` is what the model was trained for,
    0 if its files don't say; `template` is None for a model that isn't made for conversations."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        end_tokens: frozenset[int] = frozenset(),
        context_tokens: int = 0,
        template: ChatTemplate | None = None,
    ) -> None:
        encoder.no_truncation()
        encoder.no_padding()
        self.end_tokens = end_tokens
        self.context_tokens = context_tokens
        self.template = template
        self._encoder = encoder
        self._vocabulary = vocabulary_of(encoder)
        self._special = {id: token.content for id, token in encoder.get_added_tokens_decoder().items()}

    @property
    def vocabulary(self) -> int:
        """How many token ids there are, added ones included."""
        return len(self._vocabulary.bytes_of)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids. `special`: with what the tokenizer puts around a text by itself, such as a first BOS."""
        return list(self._encoder.encode(text, add_special_tokens=special).ids)

    async def encode_aside(self, text: str, *, special: bool = True) -> list[int]:
        """The same without holding up the loop: a long text goes to a thread, where the lock is released."""
        if len(text) < LONG_TEXT:
            return self.encode(text, special=special)
        batch = await asyncio.to_thread(self._encoder.encode_batch, [text], add_special_tokens=special)
        return list(batch[0].ids)

    async def chat_text_aside(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """`chat_text` without holding up the loop: a long conversation goes to a thread."""
        if len(messages) < LONG_CHAT:
            return self.chat_text(messages)
        return await asyncio.to_thread(self.chat_text, messages)

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text of a conversation; encode it with special=False, for templates bring their own.

        Raises TemplateRefusal, or ValueError if the model has no template."""
        if self.template is None:
            raise ValueError("this model has no chat template: use /v1/completions")
        return self.template.render(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """The whole text of these tokens at once, without special ones."""
        return str(self._encoder.decode(list(ids), skip_special_tokens=True))

    def detokenizer(self) -> Detokenizer:
        """A fresh state for one output."""
        return self._vocabulary.detokenizer(self._vocabulary)

    def bytes_of(self, token: int) -> bytes:
        """What a single token stands for, special tokens by their name; empty for an unknown id."""
        if token in self._special:
            return self._special[token].encode()
        bytes_of = self._vocabulary.bytes_of
        return bytes_of[token] if 0 <= token < len(bytes_of) else b""

    def text_of(self, token: int) -> str:
        """The same as text; a part of a character shows as U+FFFD."""
        return self.bytes_of(token).decode("utf-8", "replace")
