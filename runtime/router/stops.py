"""Stop strings in text that arrives in pieces.

The answer ends before the first stop string to be completed; where two are completed by the same character,
the longer one counts. So how the text was cut into pieces never changes the answer. Text that may yet turn
out to be the beginning of a stop string is held back.
"""

from collections.abc import Sequence


class Stops:
    """Looks for `strings` in everything given to `feed`."""

    __slots__ = ("_held", "_strings")

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may go out, and whether a stop string was completed (then nothing follows)."""
        text = self._held + text
        hits = [(at + len(stop), at) for stop in self._strings if (at := text.find(stop)) >= 0]
        if hits:
            self._held = ""
            return text[: min(hits)[1]], True
        keep = max((_overlap(text, stop) for stop in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held back, now that nothing can follow."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of `text` begin `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
