"""Two legs, one sequence of tokens.

The prompt machine produces the first token and the token machine the rest, on two connections whose news
arrives in any order. `Merge` puts them in order by output index: what comes early is held, what came already
is dropped, and an answer that ends with a hole in it is the machines' failure.
"""

from collections.abc import Sequence

from msgspec import Struct

from runtime.errors import EngineFailure
from runtime.wire import End, Event, Token


class Next(Struct, frozen=True, gc=False):
    """The next tokens of the answer, and how it ended if it did."""

    tokens: Sequence[Token]
    end: End | None = None


class Reading:
    """Where one leg is: an end without tokens belongs behind everything that the leg sent before."""

    __slots__ = ("reached",)

    def __init__(self) -> None:
        self.reached = 0

    def index(self, event: Event) -> int:
        """The output index at which this event applies."""
        index = event.index if event.tokens else max(event.index, self.reached)
        self.reached = index + len(event.tokens)
        return index


class Merge:
    """Merges the events of one attempt. `due` is the output index that comes next."""

    __slots__ = ("_early", "due")

    def __init__(self, due: int) -> None:
        self.due = due
        self._early: list[tuple[int, Event]] = []

    def in_turn(self, event: Event) -> bool:
        """The common case, made cheap: tokens that are due, nothing held, nothing ends. Takes them."""
        if event.index != self.due or event.end is not None or self._early:
            return False
        self.due += len(event.tokens)
        return True

    def take(self, index: int, event: Event) -> list[Next]:
        """What can go out now that this event is here. A leg's own end of "handoff" ends nothing."""
        if index > self.due:
            self._early.append((index, event))
            return []
        news = self._cut(index, event)
        if not self._early:
            return [news] if news.tokens or news.end else []
        taken = [news]
        while self._early:
            first = min(self._early, key=_index)
            if first[0] > self.due:
                break
            self._early.remove(first)
            taken.append(self._cut(*first))
        return [news for news in taken if news.tokens or news.end]

    def broken(self) -> EngineFailure:
        """No leg is left, so what is missing can never come."""
        held = f"; output {min(map(_index, self._early))} came out of turn" if self._early else ""
        return EngineFailure(f"the machines ended at output {self.due} without finishing the answer{held}")

    def _cut(self, index: int, event: Event) -> Next:
        tokens = event.tokens[self.due - index :] if index < self.due else event.tokens
        self.due += len(tokens)
        return Next(tokens, None if event.end == "handoff" else event.end)


def _index(early: tuple[int, Event]) -> int:
    return early[0]
