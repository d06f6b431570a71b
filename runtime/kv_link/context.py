"""What both halves of a machine's KV link share, and how they talk to the machine above."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from runtime.config import TransferSettings
from runtime.kv_link.pool import Pool
from runtime.kv_link.put import Put
from runtime.kv_link.transport import Faults, Limits
from runtime.wire import Token, Transfer


class KvEvents(Protocol):
    """News for the machine, on the loop's thread and never from inside a call of `KvLink`.

    Token side: a ticket ends with exactly one of `arrived`; `transfer_failed`, later `fenced`; or, once
    revoked, `fenced` alone. Prompt side: each expected transfer ends with exactly one `drained`, whatever
    happened, with `transfer_failed` before it unless it was sealed, forgotten or aborted by the engine."""

    def arrived(self, transfer: str, first: Token, stats: Transfer) -> None:
        """Token side: every byte is in and checked, the writer is gone."""

    def transfer_failed(self, transfer: str, reason: str) -> None:
        """Either side: the KV will not come whole."""

    def fenced(self, transfer: str) -> None:
        """Token side: no writer can touch the blocks any more."""

    def ticket(self, transfer: str, put: Put) -> None:
        """Prompt side: blocks are set aside at the token machine, the prompt may be computed."""

    def drained(self, transfer: str) -> None:
        """Prompt side: the source blocks are no longer read."""


@dataclass(slots=True)
class Counts:
    """For metrics; they only grow. `transfers` by (transport, mode, outcome) with outcome "arrived" or
    "failed" as the token side saw it; `forced_fences` counts peers that had to be cut off."""

    transfers: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    received_bytes: int = 0
    sent_bytes: int = 0
    forced_fences: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """A machine's KV link, as its halves see it. `host` as in `Hello.host`."""

    host: str
    pool: Pool
    settings: TransferSettings
    limits: Limits
    faults: Faults
    events: KvEvents
    counts: Counts
    loop: asyncio.AbstractEventLoop
