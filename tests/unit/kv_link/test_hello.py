"""Machines that cannot exchange KV are told so, and why, before a byte moves."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from runtime.kv_link.hello import KvHello, agree, check, fingerprint, greeting
from runtime.kv_link.layout import Layout, differences
from runtime.link import Hello, Refused
from tests.unit.kv_link.machines import LAYOUT

OURS = greeting(LAYOUT, "auto")
OTHER: dict[str, Any] = {
    "model": "huge", "revision": "2", "format": "HND", "dtype": "float16", "layers": 4, "kv_heads": 1,
    "head_dim": 8, "block_tokens": 32, "block_bytes": 64,
}  # fmt: skip


def said(body: object) -> Hello:
    return Hello("machine", "prompt-0", "i", "host", msgspec.Raw(msgspec.msgpack.encode(body)))


def test_equal_layouts_fit_whatever_their_number_of_blocks() -> None:
    theirs = greeting(structs.replace(LAYOUT, blocks=7), "auto")
    assert check(OURS, said(theirs), same_host=False).layout.blocks == 7


def test_every_field_but_blocks_is_covered() -> None:
    assert set(OTHER) == set(Layout.__struct_fields__) - {"blocks"}


@pytest.mark.fault("LINK-5")
@pytest.mark.parametrize("field", OTHER)
def test_a_difference_is_refused_by_name_with_both_values(field: str) -> None:
    theirs = greeting(structs.replace(LAYOUT, **{field: OTHER[field]}), "auto")
    with pytest.raises(Refused) as refused:
        check(OURS, said(theirs), same_host=True)
    sentence = str(refused.value)
    assert "prompt-0" in sentence
    assert f"{field}: {getattr(LAYOUT, field)!r} here, {OTHER[field]!r} at the peer" in sentence
    assert sentence.count(" here, ") == 1


@pytest.mark.fault("LINK-5")
def test_another_tensor_parallel_share_is_refused() -> None:
    """Half the heads per rank: the heads and the block's size differ, and both are named."""
    half = structs.replace(LAYOUT, kv_heads=LAYOUT.kv_heads // 2, block_bytes=LAYOUT.block_bytes // 2)
    with pytest.raises(Refused, match=r"kv_heads: 2 here, 1 at the peer; block_bytes: 128 here, 64"):
        check(OURS, said(greeting(half, "auto")), same_host=True)


def test_differences_lists_every_field() -> None:
    assert len(differences(LAYOUT, structs.replace(LAYOUT, **OTHER, blocks=1))) == len(OTHER)
    assert differences(LAYOUT, structs.replace(LAYOUT, blocks=1)) == []


def test_another_protocol_is_refused_without_looking_further() -> None:
    with pytest.raises(Refused, match="KV link protocol: 1 here, 2 at the peer"):
        check(OURS, said({"protocol": 2, "fingerprint": b"", "something": "new"}), same_host=True)


@pytest.mark.parametrize(
    "body", [None, 5, {"protocol": 1}, {"protocol": 1, "fingerprint": b"x", "layout": 3}]
)
def test_a_body_that_is_no_kv_hello_is_refused(body: object) -> None:
    with pytest.raises(Refused, match="does not speak the KV link"):
        check(OURS, said(body), same_host=True)


def test_a_fingerprint_that_is_not_its_layouts_is_refused() -> None:
    forged = structs.replace(OURS, fingerprint=b"x" * 32)
    with pytest.raises(Refused, match="fingerprint"):
        check(OURS, said(forged), same_host=True)


def test_fingerprints_differ_for_every_field() -> None:
    prints = {fingerprint(structs.replace(LAYOUT, **{field: value})) for field, value in OTHER.items()}
    assert len(prints | {fingerprint(LAYOUT)}) == len(OTHER) + 1


@pytest.mark.fault("LINK-1")
@pytest.mark.parametrize(
    ("ours", "theirs", "same_host", "why"),
    [
        ("shm", "tcp", True, "'shm' here, 'tcp' at the peer"),
        ("tcp", "shm", True, "'tcp' here, 'shm' at the peer"),
        ("shm", "shm", False, "different hosts"),
        ("shm", "auto", False, "different hosts"),
        ("auto", "shm", False, "different hosts"),
    ],
)
def test_a_named_transport_that_cannot_be_had_is_refused(
    ours: str, theirs: str, same_host: bool, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        check(greeting(LAYOUT, ours), said(greeting(LAYOUT, theirs)), same_host=same_host)


@pytest.mark.parametrize(
    ("ours", "theirs", "same_host"),
    [
        ("auto", "auto", True),
        ("auto", "auto", False),
        ("tcp", "auto", False),
        ("auto", "tcp", True),
        ("tcp", "tcp", False),
        ("shm", "auto", True),
        ("shm", "shm", True),
    ],
)
def test_transports_that_agree(ours: str, theirs: str, same_host: bool) -> None:
    agree(ours, theirs, same_host=same_host)
    assert isinstance(check(OURS, said(OURS), same_host=same_host), KvHello)
