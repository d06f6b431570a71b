"""One choice of an answer, from its first route to its last token, over as many attempts as it takes.

A machine that is lost, or a KV-cache that does not arrive, restarts the choice from scratch elsewhere
(paper section IV-E): the new attempt gets the tokens already taken as `generated` and the same seed, so the
client sees one row of tokens whatever happened behind it.
"""

import secrets
from collections.abc import Sequence
from typing import Literal, Protocol

from runtime.errors import Cancelled, Failure, MachineLost, NoCapacity, TransferFailed
from runtime.policy.work import Request
from runtime.router.attempt import Attempt, Place
from runtime.router.output import Output, Piece
from runtime.wire import End, Sampling, Start, Token, Transfer

Finish = Literal["stop", "length"]
_RESTARTED = (MachineLost, TransferFailed, NoCapacity, Cancelled)


class Desk(Protocol):
    """Finds places for choices. `restarts` more attempts are made after the first; `credit` bounds the tokens
    that are under way to a client."""

    restarts: int
    credit: int

    def place(self, choice: "Choice") -> None:
        """Call `choice.run` with a place, or `choice.failed`, now or later."""

    def withdraw(self, choice: "Choice") -> None:
        """Nobody waits for a place any more."""


class Reader(Protocol):
    """Who reads the choice: the answer that it is part of."""

    def wrote(self, choice: "Choice", tokens: int, piece: Piece | None) -> None:
        """Tokens were taken, with new text or not. If the choice has finished, this is the last call."""

    def failed(self, choice: "Choice", failure: Failure) -> None:
        """The choice cannot be finished."""

    def seconds_left(self) -> float:
        """Until the request's deadline."""


class Choice:
    """`finish` is set when it is complete, `place` and `transfer` are of the latest attempt."""

    def __init__(
        self,
        index: int,
        *,
        request_id: str,
        prompt: list[int],
        sampling: Sampling,
        output: Output,
        reader: Reader,
        desk: Desk,
    ) -> None:
        self.index = index
        self.output = output
        self.finish: Finish | None = None
        self.place: Place | None = None
        self.transfer: Transfer | None = None
        self.attempts = 0
        self.avoid: set[str] = set()
        self.placed_at = self.first_token_at = self.last_token_at = 0.0  # time.monotonic(); 0: not yet
        self._request_id = request_id
        self._prompt = prompt
        self._sampling = sampling
        self._reader = reader
        self._desk = desk
        self._attempt: Attempt | None = None
        self._credit = desk.credit
        self._unreturned = 0

    @property
    def restarts(self) -> int:
        return max(0, self.attempts - 1)

    @property
    def request(self) -> Request:
        """What routing needs to know, now."""
        taken = len(self.output.token_ids)
        return Request(len(self._prompt) + taken, self._sampling.max_tokens - taken)

    def run(self, place: Place) -> None:
        """Begin an attempt at this place."""
        self.attempts += 1
        self.place = place
        self._unreturned = 0
        start = Start(
            stream=0,
            request=self._request_id,
            phase="whole",
            prompt=self._prompt,
            sampling=self._sampling,
            deadline_s=self._reader.seconds_left(),
            credit=self._credit,
            generated=list(self.output.token_ids),
        )
        self._attempt = Attempt(place, start, self, transfer=secrets.token_hex(12))
        self._attempt.begin()

    def read(self, tokens: int) -> None:
        """The client has read so many tokens. Credit goes back in lots of a quarter: it costs a frame."""
        self._unreturned += tokens
        if self._unreturned * 4 >= self._credit and self._attempt is not None:
            self._attempt.read(self._unreturned)
            self._unreturned = 0

    def close(self) -> None:
        """Stop at once and release everything. Harmless when over."""
        self._desk.withdraw(self)
        if self._attempt is not None:
            self._attempt.close()

    def failed(self, failure: Failure) -> None:
        self._reader.failed(self, failure)

    # ---- from the attempt (runtime.router.attempt.Owner)

    def took(self, tokens: Sequence[Token], end: End | None = None) -> None:
        output = self.output
        before = len(output.token_ids)
        piece = output.push(tokens, hide_last=end == "stop")
        if output.stopped or end is not None:
            self.finish = "length" if end == "length" and not output.stopped else "stop"
            piece = _joined(piece, output.finish())
            self.close()
        self._reader.wrote(self, len(output.token_ids) - before, piece)

    def transferred(self, transfer: Transfer) -> None:
        self.transfer = transfer

    def gave_up(self, failure: Failure, machines: Sequence[str]) -> None:
        if not isinstance(failure, _RESTARTED) or self.restarts >= self._desk.restarts:
            self.failed(failure)
            return
        self.avoid.update(machines)
        self._desk.place(self)


def _joined(first: Piece | None, second: Piece | None) -> Piece | None:
    if first is None or second is None:
        return first or second
    return Piece(first.text + second.text, first.tokens + second.tokens, first.offsets + second.offsets)
