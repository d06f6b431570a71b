"""Stop strings give the same answer however the text is cut."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime.router.stops import Stops


def fed(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """The whole text that goes out, and whether a stop string ended it."""
    search, out = Stops(stops), ""
    for piece in pieces:
        text, stopped = search.feed(piece)
        out += text
        if stopped:
            return out, True
    return out + search.flush(), False


def read_by_character(stops: list[str], text: str) -> tuple[str, bool]:
    """The rule itself: the first character to complete a stop string ends the answer; the longest counts."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=4), max_size=8),
)
@example(["abab", "b"], ["aba", "b"])
def test_any_cut_gives_what_reading_by_character_gives(stops: list[str], pieces: list[str]) -> None:
    assert fed(stops, pieces) == read_by_character(stops, "".join(pieces))


@pytest.mark.parametrize(
    ("pieces", "outs"),
    [
        (["one", " EN", "D two"], ["one", " ", ""]),
        (["E", "N", "X"], ["", "", "ENX"]),
        (["EEN", "D"], ["E", ""]),
        (["no stop"], ["no stop"]),
    ],
)
def test_only_what_may_begin_a_stop_string_is_held_back(pieces: list[str], outs: list[str]) -> None:
    search = Stops(["END"])
    assert [search.feed(piece)[0] for piece in pieces] == outs
