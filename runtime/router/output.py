"""From output tokens to what the client may see: text, stop strings, and where each token begins.

Pure: tokens in, pieces out. A piece always holds the tokens whose text it completes, so logprobs go out with
the text they belong to; tokens that show no text yet wait for the next piece.
"""

from collections.abc import Sequence

from msgspec import Struct

from runtime.router.stops import Stops
from runtime.tokenizer import Detokenizer
from runtime.wire import Token


class Piece(Struct):
    """New text, the tokens behind it, and the offset in the whole text at which each token begins."""

    text: str = ""
    tokens: list[Token] = []
    offsets: list[int] = []


class Output:
    """The text of one choice. `token_ids` are all tokens taken so far."""

    def __init__(self, detokenizer: Detokenizer, *, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self.token_ids: list[int] = []
        self.stopped = False
        self._detokenizer = detokenizer
        self._stops = Stops(stop) if stop else None
        self._min_tokens = min_tokens
        self._offset = 0
        self._waiting = Piece()

    def push(self, tokens: Sequence[Token], *, hide_last: bool = False) -> Piece | None:
        """Take tokens; None if there is no new text. `hide_last`: the last one ends the answer, textless.

        Once `stopped`, the answer ends; tokens behind the one that completed a stop string are not taken."""
        waiting = self._waiting
        hidden = tokens[-1] if hide_last and tokens else None
        for token in tokens:
            self.token_ids.append(token.id)
            waiting.tokens.append(token)
            waiting.offsets.append(self._offset)
            text = "" if token is hidden else self._detokenizer.push(token.id)
            if text:
                self._offset += len(text)
                waiting.text += text if self._stops is None else self._unstopped(text)
                if self.stopped:
                    break
        if not waiting.text:
            return None
        self._waiting = Piece()
        return waiting

    def finish(self) -> Piece | None:
        """What was still held back at the end of the answer."""
        if not self.stopped:
            text = self._detokenizer.flush()
            if self._stops:
                text, self.stopped = self._stops.feed(text)
                text += "" if self.stopped else self._stops.flush()
            self._waiting.text += text
        return self._waiting if self._waiting.text or self._waiting.tokens else None

    def _unstopped(self, text: str) -> str:
        """The part of new text that no stop string can take back."""
        if self._stops and len(self.token_ids) > self._min_tokens:
            text, self.stopped = self._stops.feed(text)
        return text
