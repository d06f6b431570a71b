"""The first bytes of a data connection."""

import pytest

from runtime.kv_link.preface import (
    PREFACE,
    REPLY_BYTES,
    WELCOME,
    check_welcome,
    door_of,
    opens,
    preface,
    sorry,
)
from runtime.kv_link.transport import TransportError


def test_a_preface_names_the_door_and_shows_the_secret() -> None:
    said = preface(2**64 - 1, b"s" * 16)
    assert len(said) == PREFACE.size == 28
    assert door_of(said) == (2**64 - 1, b"s" * 16)
    assert door_of(b"HTTP" + said[4:]) is None


def test_secrets_are_compared_whole() -> None:
    assert opens(b"s" * 16, b"s" * 16)
    assert not opens(b"s" * 16, b"s" * 15 + b"t")
    assert not opens(b"s" * 16, b"")


def test_a_welcome_is_silent_and_anything_else_is_a_sentence() -> None:
    check_welcome(WELCOME)
    with pytest.raises(TransportError, match="no room here"):
        check_welcome(sorry("no room here"))
    with pytest.raises(TransportError, match="at the door"):
        check_welcome(b"")
    assert len(sorry("x" * 10_000)) == REPLY_BYTES
