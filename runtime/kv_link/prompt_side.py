"""The prompt machine's half: transfers meet the tickets that token machines armed for them.

Either may come first, and one may never come; whatever waits here waits until a deadline.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.kv_link.caller import Caller
from runtime.kv_link.context import Context
from runtime.kv_link.hello import KvHello
from runtime.kv_link.messages import Armed
from runtime.kv_link.put import Put
from runtime.link import Connection
from runtime.policy.transfer import Calibration

_REMEMBER_SECONDS = 60.0
"""How long a transfer that was given up before its ticket came is remembered, to decline that ticket at
once. Bounded so that a storm of cancelled requests is forgotten; a later ticket just waits for its end."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The machine expects a ticket for a transfer until `deadline` (monotonic seconds)."""

    deadline: float
    timer: asyncio.TimerHandle


@dataclass(frozen=True, slots=True)
class _Early:
    """A ticket that nobody expected yet."""

    caller: Caller
    ticket: Armed
    deadline: float
    timer: asyncio.TimerHandle


class PromptSide:
    """Called on the loop's thread. Every transfer is in at most one of the four tables."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._wanted: dict[str, _Wanted] = {}
        self._early: dict[str, _Early] = {}
        self._forgotten: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        self._puts: dict[str, Put] = {}
        self._calibrations: dict[str, Calibration] = {}
        self._callers: set[Caller] = set()

    def __len__(self) -> int:
        return len(self._wanted) + len(self._early) + len(self._puts)

    def expect(self, transfer: str, deadline: float) -> None:
        """See `KvLink.expect`."""
        if transfer in self._wanted or transfer in self._puts or transfer in self._forgotten:
            raise ValueError(f"transfer {transfer} is expected already")
        early = self._early.pop(transfer, None)
        if early is None:
            self._wanted[transfer] = _Wanted(
                deadline, self._at(deadline, lambda: self._never_armed(transfer))
            )
            return
        early.timer.cancel()
        self._meet(early.caller, early.ticket, min(deadline, early.deadline))

    def forget(self, transfer: str, reason: str) -> None:
        """See `KvLink.forget`."""
        if wanted := self._wanted.pop(transfer, None):
            wanted.timer.cancel()
            until = min(wanted.deadline, time.monotonic() + _REMEMBER_SECONDS)
            timer = self._at(until, lambda: self._forgotten.pop(transfer))
            self._forgotten[transfer] = (reason, timer)
            self._context.loop.call_soon(self._context.events.drained, transfer)
        elif early := self._early.pop(transfer, None):
            early.timer.cancel()
            early.caller.decline(early.ticket.epoch, reason)
        elif put := self._puts.get(transfer):
            put.stop(reason)

    async def close(self) -> None:
        """Stop waiting, hang up and let the senders' threads end."""
        waiting = [wanted.timer for wanted in self._wanted.values()]
        waiting += [early.timer for early in self._early.values()]
        waiting += [timer for _, timer in self._forgotten.values()]
        for timer in waiting:
            timer.cancel()
        self._wanted.clear()
        self._early.clear()
        self._forgotten.clear()
        await asyncio.gather(*(caller.finish() for caller in self._callers))

    # ---- the callers' side

    def accept(self, connection: Connection, peer: KvHello) -> Caller:
        """A token machine called."""
        caller = Caller(self._context, connection, peer, self)
        self._callers.add(caller)
        return caller

    def armed(self, caller: Caller, ticket: Armed) -> None:
        """A ticket came."""
        transfer, deadline = ticket.transfer, time.monotonic() + ticket.seconds
        if forgotten := self._forgotten.pop(transfer, None):
            forgotten[1].cancel()
            caller.decline(ticket.epoch, forgotten[0])
        elif transfer in self._puts or transfer in self._early:
            caller.decline(ticket.epoch, f"transfer {transfer} is armed already")
        elif wanted := self._wanted.pop(transfer, None):
            wanted.timer.cancel()
            self._meet(caller, ticket, min(deadline, wanted.deadline))
        else:
            timer = self._at(deadline, lambda: self._early.pop(transfer))
            self._early[transfer] = _Early(caller, ticket, deadline, timer)

    def withdrawn(self, caller: Caller, epoch: int | None = None) -> None:
        """A caller took back a ticket, or all it gave us, before anybody expected them."""
        for transfer, early in list(self._early.items()):
            if early.caller is caller and epoch in (None, early.ticket.epoch):
                early.timer.cancel()
                del self._early[transfer]

    def over(self, put: Put) -> None:
        """Its blocks are not read any more."""
        del self._puts[put.transfer]
        self._context.events.drained(put.transfer)

    def left(self, caller: Caller) -> None:
        """Its connection and its sender have ended."""
        self._callers.discard(caller)

    def calibration(self, transport: str) -> Calibration:
        """What transfers over this transport taught us."""
        default = self._context.settings.layerwise_above_tokens
        return self._calibrations.setdefault(transport, Calibration(default))

    # ---- inside

    def _meet(self, caller: Caller, ticket: Armed, deadline: float) -> None:
        put = self._puts[ticket.transfer] = caller.open(ticket, deadline)
        self._context.loop.call_soon(self._hand_over, put)

    def _hand_over(self, put: Put) -> None:
        if not put.parcel.stopped:
            self._context.events.ticket(put.transfer, put)

    def _never_armed(self, transfer: str) -> None:
        del self._wanted[transfer]
        self._context.events.transfer_failed(transfer, "no token machine armed it in time")
        self._context.events.drained(transfer)

    def _at(self, deadline: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        return self._context.loop.call_later(max(0.0, deadline - time.monotonic()), call)
