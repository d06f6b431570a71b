"""One prompt machine as a token machine sees it: the call to it, its way into our memory, its tickets.

A callee is one connection's life. Once that is over it only waits until its writers are gone; the next
ticket for the same machine makes a new one.
"""

import asyncio
import logging
import socket
import time
from typing import Any, Protocol

from runtime.kv_link.context import Context
from runtime.kv_link.doors import Doors
from runtime.kv_link.leases import Leases
from runtime.kv_link.ledger import SLOTS
from runtime.kv_link.messages import Abandon, Armed, Broken, Drained, Revoke, Sealed, Verified
from runtime.kv_link.tickets import Lease, Ticket, verdict
from runtime.kv_link.transport import Place, Sink, SinkEvents, Transport, TransportError
from runtime.link import Connection
from runtime.wire import FINISHED, Transfer

_log = logging.getLogger(__name__)


class Tickets(Protocol):
    """The token side, as a callee needs it."""

    def over(self, ticket: Ticket) -> None:
        """No writer can touch its blocks any more."""

    def ended(self, callee: "Callee") -> None:
        """Its connection has ended, or there was none."""

    def left(self, callee: "Callee") -> None:
        """It has ended and its writers are gone."""


class Callee:
    """A `Handler` of the connection, once there is one. Called on the loop's thread."""

    def __init__(self, context: Context, place: Place, doors: Doors, side: Tickets, address: str) -> None:
        self.address = address
        self.ended: str | None = None
        self.was_useful = False
        self._context = context
        self._place = place
        self._doors = doors
        self._side = side
        self._connection: Connection | None = None
        self._door = 0
        self._sink: Sink | None = None
        self._leases = Leases(context, late=self._late, stuck=self._force, over=side.over)
        self._gone = asyncio.Event()

    # ---- the token side's side

    def arm(self, ticket: Ticket) -> None:
        """Have a ticket used until its deadline."""
        self._leases.add(ticket)
        if self._sink:
            self._sink.admit(ticket)
        if self._connection:
            self._send_armed(ticket)

    def revoke(self, ticket: Ticket, reason: str) -> None:
        """The machine gave the ticket up. Nothing happens if its end is under way already."""
        if ticket.lease is not Lease.ARMED:
            return
        if self._connection:
            self._connection.send(Revoke(ticket.epoch, reason))
        quiet = self._sink.dismiss(ticket) if self._sink else True
        self._leases.end(ticket, quiet=quiet, drained=self._connection is None)  # then nobody knows of it

    def hang_up(self, reason: str) -> None:
        """End the connection, and the call if it is still being made."""
        if self._connection:
            self._connection.close(reason)
        else:
            self.unreachable(reason)

    async def writers_gone(self) -> None:
        """Wait until no writer can touch our memory."""
        await self._gone.wait()

    def close(self) -> None:
        """Stop watching writers, whether they are gone or not."""
        self._leases.close()
        if self._sink:
            self._sink.close()

    # ---- the call

    def connected(self, connection: Connection) -> None:
        """The machine answered and is one of ours."""
        self._connection = connection
        offer = self._doors.announce(self._welcome, slots=SLOTS)
        self._door = offer.door
        connection.send(offer)
        for ticket in self._leases:
            self._send_armed(ticket)

    def unreachable(self, reason: str) -> None:
        """There will be no connection."""
        if self.ended is None:
            self.ended = reason
            self._side.ended(self)
            self._fail_all(reason)
            self._writers_gone()

    def received(self, connection: Connection, message: Any) -> None:
        match message:
            case Sealed():
                self._sealed(message)
            case Drained(epoch=epoch):
                self._drained(epoch)
            case Abandon(epoch=epoch, reason=reason):
                if ticket := self._leases.get(epoch):
                    gave_up = reason if reason == FINISHED else f"the prompt machine gave up: {reason}"
                    self._fail(ticket, gave_up)
            case Broken(reason=reason):
                self._fail_all(reason)
                connection.close(reason)

    def closed(self, connection: Connection, reason: str) -> None:
        if self.ended is not None:
            return
        self.ended = f"the connection to {connection.peer.name} ended: {reason}"
        self._side.ended(self)
        self._doors.lock(self._door)
        self._fail_all(self.ended)
        if self._sink is None:
            self._writers_gone()
        elif not self._sink.force():
            _log.info("waiting for the writers of %s to go", connection.peer.name)

    # ---- messages

    def _send_armed(self, ticket: Ticket) -> None:
        assert self._connection is not None
        seconds = ticket.deadline - time.monotonic()
        self._connection.send(Armed(ticket.transfer, ticket.epoch, ticket.slot, ticket.blocks, seconds))

    def _sealed(self, claim: Sealed) -> None:
        ticket = self._leases.get(claim.epoch)
        if ticket is None:
            return
        if ticket.lease is Lease.ARMED:
            ticket.claim = claim
            self._judge(ticket)
        else:
            self._drained(claim.epoch)

    def _drained(self, epoch: int) -> None:
        ticket = self._leases.get(epoch)
        if ticket is None:
            return
        ticket.drained = True
        self._fail(ticket, "the prompt machine stopped")
        self._leases.look(ticket)

    # ---- the sink's side

    def _welcome(self, transport: Transport, sock: socket.socket) -> None:
        if self.ended is not None:
            raise TransportError("the connection has ended")
        live = [ticket for ticket in self._leases if ticket.lease is Lease.ARMED]
        events = SinkEvents(
            signalled=self._signalled, quiet=self._quiet, lost=self._lost, gone=self._sink_gone
        )
        self._sink = transport.serve(sock, self._place, live, events)

    def _signalled(self, epoch: int) -> None:
        ticket = self._leases.get(epoch)
        if ticket and ticket.claim and ticket.lease is Lease.ARMED:
            self._judge(ticket)

    def _quiet(self, epoch: int) -> None:
        if ticket := self._leases.get(epoch):
            ticket.quiet = True
            self._leases.look(ticket)

    def _lost(self, reason: str) -> None:
        self._fail_all(reason)
        self.hang_up(reason)

    def _sink_gone(self, reason: str) -> None:
        self._lost(reason)
        if self._sink:
            self._sink.close()
            self._sink = None
        self._writers_gone()

    # ---- a ticket's end

    def _judge(self, ticket: Ticket) -> None:
        claim = ticket.claim
        if claim is None or self._sink is None:
            self._fail(ticket, "the prompt machine sealed what it could not have put")
            return
        if not self._sink.settled(ticket):
            return  # the signal is still on its way, or lost: the deadline decides
        layout = self._context.pool.layout
        whole = layout.layers * len(ticket.blocks) * layout.block_bytes
        if reason := verdict(ticket, claim, self._sink.evidence(ticket), whole):
            self._fail(ticket, reason)
        else:
            self._arrived(ticket, claim, self._sink)

    def _arrived(self, ticket: Ticket, claim: Sealed, sink: Sink) -> None:
        verified = time.monotonic()
        assert self._connection is not None
        same_clock = self._connection.peer.host == self._context.host
        stats = Transfer(
            mode=claim.mode,
            transport=sink.name,
            bytes=claim.bytes,
            seconds=claim.ended - claim.started,
            visible_seconds=max(0.0, verified - claim.computed) if same_clock else -1.0,
        )
        sink.dismiss(ticket)  # nothing is being written: every block came, and none may come twice
        self._connection.send(Verified(ticket.epoch))
        self.was_useful = True
        self._context.counts.received_bytes += claim.bytes
        self._count(claim.mode, "arrived")
        self._leases.release(ticket)
        self._context.events.arrived(ticket.transfer, claim.first, stats)

    def _fail(self, ticket: Ticket, reason: str) -> None:
        if ticket.lease is not Lease.ARMED:
            return
        self._count(ticket.claim.mode if ticket.claim else "", "failed")
        self._context.events.transfer_failed(ticket.transfer, reason)
        self.revoke(ticket, reason)

    def _fail_all(self, reason: str) -> None:
        for ticket in self._leases:
            self._fail(ticket, reason)

    def _late(self, ticket: Ticket) -> None:
        self._fail(ticket, "the KV did not come in time")

    def _force(self, ticket: Ticket) -> None:
        """The writer was asked to stop and did not answer."""
        peer = self._connection.peer.name if self._connection else self.address
        if self._sink is None:
            self.hang_up(f"{peer} did not answer")
        elif self._sink.force():
            self._context.counts.forced_fences += 1
            _log.warning("%s did not stop putting in time: its data connection was cut", peer)
        else:
            ticket.lease = Lease.QUARANTINED
            _log.warning(
                "%s hangs while it may still write: %d blocks are in quarantine", peer, len(ticket.blocks)
            )

    def _writers_gone(self) -> None:
        self._leases.fence_all()
        self._gone.set()
        if self.ended is not None:
            self._side.left(self)

    # ---- inside

    def _count(self, mode: str, outcome: str) -> None:
        transport = self._sink.name if self._sink else ""
        self._context.counts.transfers[transport, mode, outcome] += 1
