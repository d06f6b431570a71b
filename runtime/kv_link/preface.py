"""The first bytes of a data connection: which door, and the secret that opens it.

The secret was made for this one connection and told over the authenticated control connection; whoever
reaches the data port without it learns nothing and gets nothing.
"""

import hmac
import struct

from runtime.kv_link.transport import TransportError

SECRET_BYTES = 16
PREFACE = struct.Struct("!4sQ16s")
WELCOME = b"\x00"
_SORRY = b"\x01"
REPLY_BYTES = 512
_MAGIC = b"SWKV"


def preface(door: int, secret: bytes) -> bytes:
    return PREFACE.pack(_MAGIC, door, secret)


def door_of(data: bytes) -> tuple[int, bytes] | None:
    """(door, secret) of a preface; None if it is something else."""
    magic, door, secret = PREFACE.unpack(data)
    return (door, secret) if magic == _MAGIC else None


def opens(expected: bytes, given: bytes) -> bool:
    """Whether a secret is right, in constant time."""
    return hmac.compare_digest(expected, given)


def sorry(reason: str) -> bytes:
    """What a caller with the right secret is told when this way cannot be had."""
    return _SORRY + reason.encode()[: REPLY_BYTES - 1]


def check_welcome(reply: bytes) -> None:
    """Raises TransportError with the peer's sentence unless we were let in."""
    if reply[:1] == _SORRY:
        raise TransportError(reply[1:].decode(errors="replace"))
    if reply[:1] != WELCOME:
        raise TransportError("the peer closed the data connection at the door")
