"""What is booked is given back, exactly once, in whatever order things end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.policy.work import MachineLoad, Request, Route
from runtime.router.books import Booking, Books

SPLIT, WHOLE = Route("p", "t", ""), Route("m", "m", "")
REQUEST = Request(prompt_tokens=100, output_tokens=20)


def sums(books: Books, name: str) -> tuple[int, int, int]:
    load = books.load(name, "mixed", "1", 4096)
    return load.pending_prompt_tokens, load.pending_token_tokens, load.kv_tokens


def test_both_machines_are_booked_at_once() -> None:
    books = Books()
    books.book(SPLIT, REQUEST)
    assert sums(books, "p") == (100, 0, 101)
    assert sums(books, "t") == (0, 1, 120)
    assert books.open_bookings() == 2


def test_one_machine_for_both_phases_is_booked_once() -> None:
    books = Books()
    booking = books.book(WHOLE, REQUEST)
    assert sums(books, "m") == (100, 1, 120)
    booking.prompt_done()
    booking.handed_off()
    assert sums(books, "m") == (0, 1, 120)
    booking.release()
    assert sums(books, "m") == (0, 0, 0)


def test_the_prompt_machine_is_free_after_the_hand_off() -> None:
    books = Books()
    booking = books.book(SPLIT, REQUEST)
    booking.prompt_done()
    assert sums(books, "p") == (0, 0, 101)
    booking.handed_off()
    assert sums(books, "p") == (0, 0, 0)
    assert sums(books, "t") == (0, 1, 120)


def test_a_load_carries_what_the_machine_is() -> None:
    books = Books()
    assert books.load("p", "prompt", "7", 64) == MachineLoad("p", "prompt", "7", kv_tokens_total=64)
    assert books.load("p", "prompt", "8", 64).revision == "8"


def test_a_machine_that_left_is_forgotten_unless_something_is_booked() -> None:
    books = Books()
    booking = books.book(WHOLE, REQUEST)
    books.forget("m")
    assert sums(books, "m") == (100, 1, 120)
    booking.release()
    books.forget("m")
    books.forget("never known")
    assert sums(books, "m") == (0, 0, 0)


STEPS = (Booking.prompt_done, Booking.handed_off, Booking.release)


@pytest.mark.fault("KV-1")
@given(
    st.lists(st.tuples(st.sampled_from([SPLIT, WHOLE]), st.integers(1, 500), st.integers(1, 50)), max_size=6),
    st.data(),
)
def test_books_return_to_zero_whatever_the_order(
    asked: list[tuple[Route, int, int]], data: st.DataObject
) -> None:
    books = Books()
    bookings = [books.book(route, Request(prompt, output)) for route, prompt, output in asked]
    for _ in range(data.draw(st.integers(0, 12)) if bookings else 0):
        data.draw(st.sampled_from(STEPS))(data.draw(st.sampled_from(bookings)))
        for name in "ptm":
            assert min(sums(books, name)) >= 0
    for booking in bookings:
        booking.release()
    assert [sums(books, name) for name in "ptm"] == [(0, 0, 0)] * 3
    assert books.open_bookings() == 0
