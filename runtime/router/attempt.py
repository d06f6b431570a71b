"""One try at one choice: two legs on two machines, or one leg on one, merged into one row of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from runtime.errors import Failure, TransferFailed, failure
from runtime.router.books import Booking
from runtime.router.machine import Machine
from runtime.router.merge import Merge, Reading
from runtime.wire import End, Event, Phase, Start, Token, Transfer


class Owner(Protocol):
    """Whose attempt it is."""

    def took(self, tokens: Sequence[Token], end: End | None = None) -> None:
        """The next tokens, and the end with the last."""

    def transferred(self, transfer: Transfer) -> None:
        """The KV-cache has arrived."""

    def gave_up(self, failure: Failure, machines: Sequence[str]) -> None:
        """The attempt failed, on these machines; it has released everything."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attempt runs, and the entry in the books for it."""

    prompt: Machine
    token: Machine
    booking: Booking
    why: str

    @property
    def split(self) -> bool:
        return self.prompt is not self.token


class Attempt:
    """`start` is the leg to send, but for stream, phase and transfer, which are filled in here."""

    def __init__(self, place: Place, start: Start, owner: Owner, transfer: str) -> None:
        self.place = place
        self.over = False
        self.owner = owner
        self.merge = Merge(len(start.generated))
        if place.split:
            start = structs.replace(start, transfer=transfer)
            self._legs = [_Leg(self, place.prompt, "prompt"), _Leg(self, place.token, "token")]
        else:
            self._legs = [_Leg(self, place.token, "whole")]
        self._start = start

    def begin(self) -> None:
        """Send both legs in this tick."""
        for leg in self._legs:
            address = self.place.prompt.address if leg.phase == "token" else ""
            leg.machine.open(
                leg,
                structs.replace(self._start, stream=leg.stream, phase=leg.phase, prompt_machine=address),
            )

    def read(self, tokens: int) -> None:
        """The client has read so many tokens: the leg that produces the rest may send more."""
        leg = self._legs[-1]
        if leg.is_open:
            leg.machine.credit(leg.stream, tokens)

    def close(self) -> None:
        """End the legs and release what the attempt holds. Harmless when over."""
        self.over = True
        for leg in self._legs:
            leg.close()
        self.place.booking.release()

    # ---- from the legs

    def event(self, leg: "_Leg", event: Event) -> None:
        if event.transfer is not None:
            self.owner.transferred(event.transfer)
        if event.end == "error":
            self.give_up(
                leg, failure(*(event.error or ("engine_failure", "a machine failed without a word")))
            )
            return
        for news in self.merge.take(leg.reading.index(event), event):
            self.place.booking.prompt_done()
            self.owner.took(news.tokens, news.end)
            if self.over:
                return
        if event.end is not None:
            self._ended(leg)

    def _ended(self, leg: "_Leg") -> None:
        if leg.phase == "prompt":
            self.place.booking.handed_off()
        if not any(leg.is_open for leg in self._legs):
            self.give_up(leg, self.merge.broken())

    def give_up(self, leg: "_Leg", failure: Failure) -> None:
        if self.over:
            return
        self.close()
        self.owner.gave_up(failure, self._suspects(leg, failure))

    def _suspects(self, leg: "_Leg", failure: Failure) -> list[str]:
        """Where not to go next: a token machine that lost a transfer often tells it before we notice that
        the prompt machine is gone, so that one is suspect too."""
        legs = self._legs if isinstance(failure, TransferFailed) else [leg]
        return [suspect.machine.name for suspect in legs]


class _Leg:
    """One leg's stream on its machine (runtime.router.machine.Leg)."""

    __slots__ = ("_attempt", "is_open", "machine", "phase", "reading", "stream")

    def __init__(self, attempt: Attempt, machine: Machine, phase: Phase) -> None:
        self.machine = machine
        self.phase: Phase = phase
        self.stream = machine.new_stream()
        self.reading = Reading()
        self.is_open = True
        self._attempt = attempt

    def event(self, event: Event) -> None:
        attempt = self._attempt
        if self.phase == "token" and not attempt.over and attempt.merge.in_turn(event):
            self.reading.reached = attempt.merge.due
            if event.transfer is not None:
                attempt.owner.transferred(event.transfer)
            attempt.owner.took(event.tokens)
            return
        self.is_open = event.end is None
        if not attempt.over:
            attempt.event(self, event)

    def broke(self, failure: Failure) -> None:
        self.is_open = False
        self._attempt.give_up(self, failure)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.machine.cancel(self.stream)
