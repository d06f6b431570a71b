"""One token machine as a prompt machine sees it: a connection, a sender, and the puts under way to it."""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from runtime.kv_link.context import Context
from runtime.kv_link.hello import AUTO, KvHello
from runtime.kv_link.messages import Abandon, Armed, Broken, Drained, Offer, Revoke, Verified
from runtime.kv_link.put import Put
from runtime.kv_link.sender import Parcel, Route, Sender, SenderEvents
from runtime.kv_link.transport import Transport
from runtime.kv_link.transports import TRANSPORTS
from runtime.link import Connection
from runtime.policy.transfer import Calibration, Mode

_MOST_UNVERIFIED = 1024
_log = logging.getLogger(__name__)


class Tickets(Protocol):
    """The prompt side, as a caller needs it."""

    def armed(self, caller: "Caller", ticket: Armed) -> None: ...
    def withdrawn(self, caller: "Caller", epoch: int | None = None) -> None: ...
    def over(self, put: Put) -> None: ...
    def calibration(self, transport: str) -> Calibration: ...
    def left(self, caller: "Caller") -> None: ...


class Caller:
    """A `Handler` of the connection. Called on the loop's thread, save where said otherwise."""

    def __init__(self, context: Context, connection: Connection, peer: KvHello, side: Tickets) -> None:
        self._context = context
        self._connection = connection
        self._peer = peer
        self._side = side
        self._same_host = connection.peer.host == context.host
        self._slots = 0
        self._sender: Sender | None = None
        self._transport = ""
        self._switch_tokens = context.settings.layerwise_above_tokens
        self._ended = True  # no sender's thread
        self._puts: dict[int, Put] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._unverified: OrderedDict[int, tuple[Mode, int, float]] = OrderedDict()

    # ---- the connection's side

    def received(self, connection: Connection, message: Any) -> None:
        match message:
            case Offer():
                self._offered(message)
            case Armed():
                self._armed(message)
            case Revoke(epoch=epoch, reason=reason):
                self._revoked(epoch, reason)
            case Verified(epoch=epoch):
                self._verified(epoch)

    def closed(self, connection: Connection, reason: str) -> None:
        self._side.withdrawn(self)
        self._fail_all(f"the connection to {connection.peer.name} ended: {reason}")
        if self._sender:
            self._sender.close()
        if self._ended:
            self._side.left(self)

    async def finish(self) -> None:
        """Hang up and wait, no longer than it takes to fence, until the sender's thread is gone."""
        self._connection.close("the machine stops")
        if self._sender:
            self._sender.close()
            await asyncio.to_thread(self._sender.join, self._context.limits.fence_after)

    # ---- the prompt side's side

    def open(self, ticket: Armed, deadline: float) -> Put:
        """A way out for a ticket that a transfer waits for. `deadline`: monotonic seconds."""
        assert self._sender is not None
        put = Put(
            ticket,
            self._sender,
            self._context.pool.layout,
            switch_tokens=lambda: self._switch_tokens,
            stopped=lambda put, reason, told: self._soon(self._stop, put, reason, told),
        )
        self._puts[ticket.epoch] = put
        self._timers[ticket.epoch] = self._context.loop.call_later(
            max(0.0, deadline - time.monotonic()), self._stop, put, "the transfer's time is over", False
        )
        return put

    def decline(self, epoch: int, reason: str) -> None:
        """A ticket will not be used, and nothing was put."""
        self._connection.send(Abandon(epoch, reason))
        self._connection.send(Drained(epoch))

    # ---- messages

    def _offered(self, offer: Offer) -> None:
        if self._sender:
            self._connection.close("the KV link was offered twice")
            return
        self._slots = offer.slots
        events = SenderEvents(
            opened=lambda transport: self._soon(self._opened, transport),
            sealed=lambda parcel: self._soon(self._sealed, parcel),
            drained=lambda parcel: self._soon(self._drained, parcel),
            broken=lambda reason: self._soon(self._broken, reason),
        )
        self._sender = Sender(
            self._context.pool,
            Route(offer, self._ways(offer), self._peer.layout),
            events,
            limits=self._context.limits,
            faults=self._context.faults,
        )
        self._ended = False
        self._sender.start()

    def _ways(self, offer: Offer) -> list[Transport]:
        wanted = self._context.settings.transport
        return [
            transport
            for name, transport in TRANSPORTS.items()
            if name in offer.ways
            and wanted in (AUTO, name)
            and (self._same_host or not transport.needs_same_host)
        ]

    def _armed(self, ticket: Armed) -> None:
        if problem := self._misfit(ticket):
            self.decline(ticket.epoch, problem)
        else:
            self._side.armed(self, ticket)

    def _misfit(self, ticket: Armed) -> str | None:
        if self._sender is None:
            return "a ticket came before the offer of a way to use it"
        if not 0 <= ticket.slot < self._slots or ticket.epoch in self._puts:
            return "the ticket's slot or epoch makes no sense"
        if not ticket.blocks or len(set(ticket.blocks)) != len(ticket.blocks):
            return "a ticket needs blocks, each of them once"
        if not all(0 <= block < self._peer.layout.blocks for block in ticket.blocks):
            return f"the ticket names blocks outside the peer's pool of {self._peer.layout.blocks}"
        return None

    def _revoked(self, epoch: int, reason: str) -> None:
        put = self._puts.get(epoch)
        if put:
            self._stop(put, f"the token machine gave up: {reason}", False)
        else:
            self._side.withdrawn(self, epoch)
            self._connection.send(Drained(epoch))

    def _verified(self, epoch: int) -> None:
        mode, batch_tokens, computed = self._unverified.pop(epoch, ("serialized", 0, 0.0))
        if batch_tokens:
            calibration = self._side.calibration(self._transport)
            calibration.observe(mode, batch_tokens, time.monotonic() - computed)
            self._recall(calibration)

    # ---- the sender's side, brought to the loop

    def _opened(self, transport: str) -> None:
        self._transport = transport
        self._recall(self._side.calibration(transport))

    def _sealed(self, parcel: Parcel) -> None:
        put = self._puts[parcel.ticket.epoch]
        for seal in self._context.faults.doorbell(put.claim()):
            self._connection.send(seal)
        self._context.counts.sent_bytes += parcel.bytes
        self._unverified[parcel.ticket.epoch] = (put.mode, put.batch_tokens, put.computed)
        if len(self._unverified) > _MOST_UNVERIFIED:
            self._unverified.popitem(last=False)
        self._over(put)

    def _drained(self, parcel: Parcel) -> None:
        self._connection.send(Drained(parcel.ticket.epoch))
        self._over(self._puts[parcel.ticket.epoch])

    def _broken(self, reason: str) -> None:
        self._ended = True
        if self._connection.is_closed:
            self._side.left(self)
            return
        self._fail_all(reason)
        self._soon(self._part, reason)  # behind the news that everything is drained

    def _part(self, reason: str) -> None:
        self._connection.send(Broken(reason))
        self._connection.close(reason)

    # ---- inside

    def _recall(self, calibration: Calibration) -> None:
        """Worked out here, as puts ask for it on the engine's thread."""
        if self._context.settings.calibrate:
            self._switch_tokens = calibration.switch_tokens

    def _stop(self, put: Put, reason: str, machine_knows: bool) -> None:
        """Put nothing more; once drained, both sides hear of it."""
        if put.parcel.stopped or put.parcel.told:
            return
        self._connection.send(Abandon(put.parcel.ticket.epoch, reason))
        put.sender.stop(put.parcel)
        if not machine_knows:
            self._context.events.transfer_failed(put.transfer, reason)
        self._timers.pop(put.parcel.ticket.epoch).cancel()
        self._timers[put.parcel.ticket.epoch] = self._context.loop.call_later(
            self._context.limits.fence_after, put.sender.cut
        )

    def _over(self, put: Put) -> None:
        self._timers.pop(put.parcel.ticket.epoch).cancel()
        del self._puts[put.parcel.ticket.epoch]
        self._side.over(put)

    def _fail_all(self, reason: str) -> None:
        for put in list(self._puts.values()):
            self._stop(put, reason, False)

    def _soon(self, call: Callable[..., None], *news: object) -> None:
        """From any thread to the loop's."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._context.loop.call_soon_threadsafe(call, *news)
