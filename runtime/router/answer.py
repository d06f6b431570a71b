"""One request being answered: its choices, its deadline, its times, and its one end."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from runtime.errors import DeadlineExceeded, Failure
from runtime.router.ask import Ask
from runtime.router.choice import Choice, Desk
from runtime.router.output import Output, Piece
from runtime.tokenizer import Tokenizer


class Sink(Protocol):
    """Takes an answer to the client."""

    def wrote(self, choice: Choice, tokens: int, piece: Piece | None) -> None:
        """Tokens were taken, with new text or not; `choice.finish` is set with the last."""

    def ended(self, failure: Failure | None) -> None:
        """All choices have finished, or the answer has failed. Called once, last."""


class Unread:
    """The Sink of an answer whose client has left: nothing is kept; `over` is called at its end."""

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over

    def wrote(self, choice: Choice, tokens: int, piece: Piece | None) -> None:
        choice.read(tokens)

    def ended(self, failure: Failure | None) -> None:
        self._over()


class Watch(Protocol):
    """Hears of every token's time (metrics)."""

    def first_token(self, seconds: float) -> None: ...
    def next_token(self, seconds: float) -> None: ...


class Answer:
    """`begin` sends every choice on its way; `close` ends whatever still runs and releases it.

    Times are of time.monotonic(): uvloop's own clock only counts milliseconds."""

    def __init__(
        self, ask: Ask, *, request_id: str, context: int, tokenizer: Tokenizer, desk: Desk, seconds: float
    ) -> None:
        self.ask = ask
        self.request_id = request_id
        self.begun_at = monotonic()
        self.seconds = seconds
        self.first_token_at: float | None = None
        self.failure: Failure | None = None
        self.choices = [
            Choice(
                index,
                request_id=request_id,
                prompt=ask.prompt_of(index).ids,
                sampling=(sampling := ask.sampling_of(index, context)),
                output=Output(tokenizer.detokenizer(), stop=ask.stop, min_tokens=sampling.min_tokens),
                reader=self,
                desk=desk,
            )
            for index in range(ask.choices)
        ]
        self._unfinished = len(self.choices)
        self._timer: asyncio.TimerHandle | None = None
        self._desk = desk
        self._over = False

    def begin(self, sink: Sink, watch: Watch) -> None:
        self._sink = sink
        self._watch = watch
        self._timer = asyncio.get_running_loop().call_later(self.seconds_left(), self._expire)
        for choice in self.choices:
            if not self._over:
                self._desk.place(choice)

    def go_on(self, over: Callable[[], None]) -> bool:
        """Finish without a client; `over` is called then. False if it has ended."""
        if self._over:
            return False
        self._sink = Unread(over)
        for choice in self.choices:
            choice.read(self._desk.credit)  # a client that read slowly may have used all of it
        return True

    @property
    def output_tokens(self) -> int:
        return sum(len(choice.output.token_ids) for choice in self.choices)

    @property
    def restarts(self) -> int:
        return sum(choice.restarts for choice in self.choices)

    @property
    def is_complete(self) -> bool:
        return not self._unfinished

    def close(self) -> None:
        """End what still runs, on every machine, at once. Harmless when over."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        for choice in self.choices:
            choice.close()

    # ---- from the choices (runtime.router.choice.Reader)

    def wrote(self, choice: Choice, tokens: int, piece: Piece | None) -> None:
        if self._over:
            return
        if tokens:
            now, last = monotonic(), choice.last_token_at
            choice.last_token_at = now
            if last:
                self._watch.next_token(now - last)
            else:
                self._began(choice, now)
        if choice.finish is not None:
            self._unfinished -= 1
        self._sink.wrote(choice, tokens, piece)
        if not self._unfinished:
            self.close()
            self._sink.ended(None)

    def failed(self, choice: Choice, failure: Failure) -> None:
        if self._over:
            return
        self.failure = failure
        self.close()
        self._sink.ended(failure)

    def seconds_left(self) -> float:
        return max(0.0, self.begun_at + self.seconds - monotonic())

    def _expire(self) -> None:
        self.failed(self.choices[0], DeadlineExceeded(f"not done within {self.seconds:g} s"))

    def _began(self, choice: Choice, now: float) -> None:
        choice.first_token_at = now
        if self.first_token_at is None:
            self.first_token_at = now
            self._watch.first_token(now - self.begun_at)
