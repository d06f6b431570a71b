"""Two legs' events in any order give one row of tokens."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.router.merge import Merge, Reading
from runtime.wire import End, Event, Token


def event(index: int, *ids: int, end: End | None = None) -> Event:
    return Event(1, index, tuple(map(Token, ids)), end)


def merged(merge: Merge, legs: Iterable[tuple[Reading, Event]]) -> tuple[list[int], list[End]]:
    ids: list[int] = []
    ends: list[End] = []
    for reading, news in legs:
        for ready in merge.take(reading.index(news), news):
            ids += [token.id for token in ready.tokens]
            ends += [ready.end] if ready.end else []
    return ids, ends


PROMPT = [event(0, 10, end="handoff")]
TOKEN = [event(1), event(1, 11), event(2, 12, 13), event(4, 14, end="length")]


@pytest.mark.parametrize("place", range(5))
def test_the_first_token_may_come_at_any_time(place: int) -> None:
    prompt, token = Reading(), Reading()
    arrivals = [(token, news) for news in TOKEN]
    arrivals.insert(place, (prompt, PROMPT[0]))
    assert merged(Merge(0), arrivals) == ([10, 11, 12, 13, 14], ["length"])


@pytest.mark.fault("STREAM-3")
def test_a_token_that_comes_twice_is_taken_once() -> None:
    """A token machine that recomputed the prompt tells the first token, too."""
    reading = Reading()
    arrivals = [(Reading(), PROMPT[0]), (reading, event(0, 10, 11)), (reading, event(2, 12, end="stop"))]
    assert merged(Merge(0), arrivals) == ([10, 11, 12], ["stop"])


def test_an_end_without_tokens_ends_behind_what_its_leg_said_before() -> None:
    token = Reading()
    arrivals = [(token, event(1, 11)), (token, event(0, end="length")), (Reading(), PROMPT[0])]
    assert merged(Merge(0), arrivals) == ([10, 11], ["length"])


def test_a_restart_begins_where_the_client_is() -> None:
    merge = Merge(3)
    arrivals = [(Reading(), event(4, 14)), (Reading(), event(3, 13, end="handoff"))]
    assert merged(merge, arrivals) == ([13, 14], [])
    assert merge.due == 5


def test_an_end_with_a_hole_before_it_says_where() -> None:
    merge = Merge(0)
    assert merge.take(2, event(2, 12, end="length")) == []
    assert "ended at output 0" in merge.broken().message
    assert "output 2 came out of turn" in merge.broken().message


@given(st.data(), st.integers(1, 12))
def test_any_arrival_order_and_any_overlap_is_one_row(data: st.DataObject, count: int) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, count), max_size=4)) | {0, count})
    spans = [(a, b) for a, b in itertools.pairwise(cuts)]
    overlaps = [(max(0, a - 1), b) for a, b in spans if data.draw(st.booleans())]
    events = [event(a, *range(a, b)) for a, b in data.draw(st.permutations(spans + overlaps))]
    ids, _ = merged(Merge(0), [(Reading(), news) for news in events])
    assert ids == list(range(count))
