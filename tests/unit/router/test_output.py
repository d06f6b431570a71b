"""Tokens to pieces: text complete, tokens with their text, offsets where tokens begin."""

from collections.abc import Sequence

from runtime.router.output import Output, Piece
from runtime.wire import Token

TEXTS = {1: "one", 2: " two", 3: "", 4: "é", 5: " END", 6: " of", 9: "<end>"}


class Words:
    """A detokenizer by table; token 3 leaves half a character behind that 4 completes."""

    def __init__(self) -> None:
        self.half = False

    def push(self, token: int) -> str:
        self.half = token == 3
        return TEXTS[token]

    def flush(self) -> str:
        return "\ufffd" if self.half else ""


def output(*, stop: Sequence[str] = (), min_tokens: int = 0) -> Output:
    return Output(Words(), stop=stop, min_tokens=min_tokens)


def push(out: Output, *ids: int, hide_last: bool = False) -> tuple[str, list[int], list[int]] | None:
    return shown(out.push([Token(id) for id in ids], hide_last=hide_last))


def shown(piece: Piece | None) -> tuple[str, list[int], list[int]] | None:
    return (piece.text, [token.id for token in piece.tokens], piece.offsets) if piece else None


def test_every_token_goes_out_with_its_text_and_its_place() -> None:
    out = output()
    assert push(out, 1) == ("one", [1], [0])
    assert push(out, 2, 6) == (" two of", [2, 6], [3, 7])
    assert out.token_ids == [1, 2, 6]
    assert out.finish() is None


def test_a_token_without_text_waits_for_the_one_that_completes_it() -> None:
    out = output()
    assert push(out, 1, 3) == ("one", [1, 3], [0, 3])
    assert push(out, 3) is None
    assert push(out, 4) == ("é", [3, 4], [3, 3])


def test_half_a_character_at_the_end_is_told_and_counted() -> None:
    out = output()
    assert push(out, 3) is None
    assert shown(out.finish()) == ("\ufffd", [3], [0])


def test_the_end_token_counts_and_shows_no_text() -> None:
    out = output()
    assert push(out, 1, 9, hide_last=True) == ("one", [1, 9], [0, 3])
    assert out.token_ids == [1, 9]
    alone = output()
    assert push(alone, 9, hide_last=True) is None
    assert shown(alone.finish()) == ("", [9], [0])


def test_a_stop_string_ends_the_text_and_the_tokens() -> None:
    out = output(stop=["END of"])
    assert push(out, 1, 5) == ("one ", [1, 5], [0, 3])
    assert not out.stopped
    assert push(out, 6, 2, 2) is None
    assert out.stopped
    assert out.token_ids == [1, 5, 6]
    assert shown(out.finish()) == ("", [6], [7])


def test_held_text_goes_out_at_the_end_if_no_stop_string_came() -> None:
    out = output(stop=["END of"])
    assert push(out, 5) == (" ", [5], [0])
    assert shown(out.finish()) == ("END", [], [])


def test_stop_strings_count_only_behind_min_tokens() -> None:
    out = output(stop=["END"], min_tokens=2)
    assert push(out, 5, 1) == (" ENDone", [5, 1], [0, 4])
    assert push(out, 5) == (" ", [5], [7])
    assert out.stopped
