"""What two machines say to each other about KV, over their link connection.

    token machine (calls)                        prompt machine (listens)
    Offer(door, secret, ways)            ->      opens the data connection
    Armed(epoch, slot, blocks, ...)      ->      may put
                                         <-      Sealed(epoch, ...)     all put, signal posted
    Verified(epoch)                      ->      it was whole
    Revoke(epoch, reason)                ->      stop
                                         <-      Drained(epoch)         nothing is in flight any more
                                         <-      Abandon(epoch, reason) the prompt gives up; Drained follows
                                         <-      Broken(reason)         no data connection can be had

A ticket is named by its epoch, which a token machine never uses twice.
"""

from typing import Literal

from msgspec import Struct

from runtime.wire import Token


class Offer(Struct, frozen=True, tag="offer"):
    """How to reach the token machine's memory: transport name to address, best first. `secret` (16 bytes)
    opens `door` once. `slots`: size of the slot array."""

    door: int
    secret: bytes
    ways: dict[str, str]
    slots: int


class Armed(Struct, frozen=True, tag="armed"):
    """`blocks[i]` is set aside for logical block i of every layer, for so many seconds."""

    transfer: str
    epoch: int
    slot: int
    blocks: tuple[int, ...]
    seconds: float


class Revoke(Struct, frozen=True, tag="revoke"):
    epoch: int
    reason: str


class Verified(Struct, frozen=True, tag="verified"):
    epoch: int


TokenMessage = Offer | Armed | Revoke | Verified


class Sealed(Struct, frozen=True, tag="sealed"):
    """The doorbell. What the prompt machine says it did; the ledger has to agree. `started` and `ended`
    bound the puts and `computed` is the end of the last layer's compute, on the prompt machine's
    CLOCK_MONOTONIC."""

    epoch: int
    first: Token
    mode: Literal["serialized", "layerwise"]
    puts: int
    bytes: int
    started: float
    ended: float
    computed: float


class Drained(Struct, frozen=True, tag="drained"):
    epoch: int


class Abandon(Struct, frozen=True, tag="abandon"):
    epoch: int
    reason: str


class Broken(Struct, frozen=True, tag="broken"):
    reason: str


PromptMessage = Sealed | Drained | Abandon | Broken
