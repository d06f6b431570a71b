"""Who is there, and do they know the secret?

    caller                              listener
    Call(version, hello, nonce)    ->
                                   <-   Answer(hello, nonce, proof)       or  Refusal(reason)
    Proof(proof)                   ->
                                   <-   Welcome()                         or  Refusal(reason)

Both proofs are HMAC-SHA256 over everything said so far, under a key of the deployment and a label per side,
so neither side can be replayed or reflected. The listener chooses the key, and the caller proves that it
knows the same one (`keyring`). The version is looked at before anything else.
"""

import hashlib
import hmac
import secrets
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

PROTOCOL_VERSION = 1
NONCE_BYTES = 32
HANDSHAKE_FRAME_BYTES = 64 * 1024


class LinkError(Exception):
    """A connection could not be made; the message is a sentence for a person."""


class Refused(Exception):
    """Raised by a listener's `accept`: the caller is told this sentence and let go."""


class Hello(Struct, frozen=True):
    """Who a peer is. `instance` is new with every process start; equal `host` means one kernel, hence one
    CLOCK_MONOTONIC and, where reachable, shared memory. `body` is msgpack for the layer above."""

    kind: str
    name: str
    instance: str
    host: str
    body: Raw = Raw(b"\xc0")


class Call(Struct, frozen=True, tag="call"):
    version: int
    hello: Hello
    nonce: bytes


class Answer(Struct, frozen=True, tag="answer"):
    hello: Hello
    nonce: bytes
    proof: bytes


class Proof(Struct, frozen=True, tag="proof"):
    proof: bytes


class Welcome(Struct, frozen=True, tag="welcome"):
    pass


class Refusal(Struct, frozen=True, tag="refusal"):
    reason: str


Message = Call | Answer | Proof | Welcome | Refusal

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof(key: bytes, side: str, *, call: Call, hello: Hello, nonce: bytes) -> bytes:
    """The proof that `side` ("caller" or "listener") knows the key in this very conversation."""
    said = encode([side, call, hello, nonce])
    return hmac.new(key, said, hashlib.sha256).digest()


def proves(expected: bytes, given: bytes) -> bool:
    """Whether a proof is right, in constant time."""
    return hmac.compare_digest(expected, given)


def check_call(call: Call) -> None:
    """Raises Refused if we cannot talk with this caller at all."""
    if call.version != PROTOCOL_VERSION:
        raise Refused(
            f"link protocol version {call.version} called, {PROTOCOL_VERSION} is spoken here: "
            "run the same release on both sides"
        )
    if len(call.nonce) != NONCE_BYTES:
        raise Refused("the caller's nonce has the wrong length")


def host_id() -> str:
    """What two processes share exactly if one kernel runs both (Linux boot id)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return secrets.token_hex(16)
