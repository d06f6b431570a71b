"""Whether two machines may exchange KV: the same protocol, KV that means the same, a transport both want.

The protocol version is looked at first and the rest decoded only if it is ours. A refusal names every
field that differs and both values.
"""

import hashlib

import msgspec
from msgspec import Struct, structs

from runtime.kv_link.layout import Layout, differences
from runtime.link import Hello, Refused

PROTOCOL = 1
AUTO = "auto"

_encode = msgspec.msgpack.Encoder().encode


class KvGreeting(Struct, frozen=True):
    """The part of `KvHello` that every version can read."""

    protocol: int
    fingerprint: bytes


class KvHello(Struct, frozen=True):
    """What a machine says about its KV in the body of its link hello. `transport` as in its settings."""

    protocol: int
    fingerprint: bytes
    layout: Layout
    transport: str


def fingerprint(layout: Layout) -> bytes:
    """Equal for layouts that can exchange KV, whatever their number of blocks."""
    fields = structs.asdict(layout)
    del fields["blocks"]
    return hashlib.sha256(_encode(fields)).digest()


def greeting(layout: Layout, transport: str) -> KvHello:
    return KvHello(PROTOCOL, fingerprint(layout), layout, transport)


def check(ours: KvHello, theirs: Hello, *, same_host: bool) -> KvHello:
    """The peer's hello, if we can work together. Raises Refused with a sentence."""
    try:
        first = msgspec.msgpack.decode(theirs.body, type=KvGreeting)
        if first.protocol != PROTOCOL:
            raise Refused(
                f"KV link protocol: {PROTOCOL} here, {first.protocol} at the peer; run one release on both"
            )
        peer = msgspec.msgpack.decode(theirs.body, type=KvHello)
    except msgspec.MsgspecError as error:
        raise Refused(f"{theirs.name} does not speak the KV link: {error}") from error
    if first.fingerprint != ours.fingerprint:
        fields = differences(ours.layout, peer.layout) or ["fingerprint: not that of its own layout"]
        raise Refused(f"the KV of {theirs.name} does not fit: " + "; ".join(fields))
    agree(ours.transport, peer.transport, same_host=same_host)
    return peer


def agree(ours: str, theirs: str, *, same_host: bool) -> None:
    """Raises Refused if a transport was asked for by name and cannot be had."""
    named = {ours, theirs} - {AUTO}
    if len(named) > 1:
        raise Refused(f"KV transport: {ours!r} here, {theirs!r} at the peer; ask for the same, or for auto")
    if "shm" in named and not same_host:
        raise Refused("KV transport 'shm' was asked for, but the two machines run on different hosts")
