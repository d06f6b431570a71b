"""KV over TCP: between hosts without RDMA. The receiver checks every put, so a fence is always at hand:
once the data connection is cut and its thread has ended, nobody can write.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from runtime.kv_link.layout import Layout
from runtime.kv_link.messages import Armed
from runtime.kv_link.pool import Pool
from runtime.kv_link.preface import REPLY_BYTES, WELCOME, check_welcome
from runtime.kv_link.runs import Run
from runtime.kv_link.tickets import Evidence, Ticket
from runtime.kv_link.transport import Place, SinkEvents, TransportError
from runtime.kv_link.transports import frames
from runtime.kv_link.transports.receiver import Receiver, ReceiverEvents

_BACKLOG = 128


class TcpSource:
    """The prompt machine's end: gathers blocks straight out of the pool."""

    name = "tcp"

    def __init__(self, sock: socket.socket, pool: Pool) -> None:
        self._sock = sock
        self._pool = pool

    def put(self, ticket: Armed, layer: int, runs: Sequence[Run]) -> None:
        header = frames.put_header(
            layer, ticket.epoch, ticket.slot, [(run.target, run.length) for run in runs]
        )
        views = [memoryview(header)]
        views += [self._pool.blocks(layer, run.source, run.length) for run in runs]
        frames.send_all(self._sock, views)

    def signal(self, ticket: Armed, puts: int) -> None:
        frames.send_all(self._sock, [memoryview(frames.signal_frame(ticket.epoch, ticket.slot, puts))])

    def cut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def close(self) -> None:
        self._sock.close()


class TcpSink:
    """The token machine's end: a receiving thread, and its news on the loop."""

    name = "tcp"

    def __init__(
        self, sock: socket.socket, place: Place, tickets: Iterable[Ticket], events: SinkEvents
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ledger = place.ledger
        self._open = True
        told = ReceiverEvents(
            signalled=lambda epoch: self._tell(events.signalled, epoch),
            quiet=lambda epoch: self._tell(events.quiet, epoch),
            gone=lambda reason: self._tell(events.gone, reason),
        )
        self._receiver = Receiver(sock, place.pool, place.ledger, told)
        for ticket in tickets:
            self._receiver.admit(ticket)
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(WELCOME)
        self._receiver.start()

    @property
    def admitted(self) -> int:
        """How many tickets puts are taken for."""
        return self._receiver.admitted

    def admit(self, ticket: Ticket) -> None:
        self._receiver.admit(ticket)

    def settled(self, ticket: Ticket) -> bool:
        seen = self._receiver.seen(ticket.epoch)
        return seen is not None and seen.signalled

    def evidence(self, ticket: Ticket) -> Evidence:
        seen = self._receiver.seen(ticket.epoch)
        return Evidence(
            word=self._ledger.word(ticket.slot),
            missing=self._ledger.missing(ticket.blocks, ticket.epoch),
            received=(seen.puts, seen.bytes) if seen else (0, 0),
        )

    def dismiss(self, ticket: Ticket) -> bool:
        return self._receiver.dismiss(ticket.epoch)

    def force(self) -> bool:
        self._receiver.cut()
        return True

    def close(self) -> None:
        self._open = False
        self._receiver.cut()
        self._receiver.join()

    def _tell(self, call: Callable[[Any], None], news: object) -> None:
        """From the receiver's thread to the loop's."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._told, call, news)

    def _told(self, call: Callable[[Any], None], news: object) -> None:
        if self._open:
            call(news)


class Tcp:
    """See `Transport`."""

    name = "tcp"
    needs_same_host = False

    def bind(self, place: Place) -> tuple[socket.socket, str] | None:
        family = socket.AF_INET6 if ":" in place.data_host else socket.AF_INET
        try:
            listener = socket.create_server((place.data_host, 0), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise TransportError(
                f"the KV data port cannot listen on {place.data_host!r}: {error.strerror or error}; set "
                "transfer.data_host to an address of this machine that its peers can reach"
            ) from error
        if ipaddress.ip_address(listener.getsockname()[0]).is_unspecified:
            listener.close()
            raise TransportError("transfer.data_host is told to peers: write an address they can reach")
        return listener, f"{place.data_host}:{listener.getsockname()[1]}"

    def unbind(self, address: str) -> None:
        """Nothing is left of a TCP socket."""

    def connect(self, address: str, seconds: float) -> socket.socket:
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=seconds)

    def serve(
        self, sock: socket.socket, place: Place, tickets: Iterable[Ticket], events: SinkEvents
    ) -> TcpSink:
        return TcpSink(sock, place, tickets, events)

    def open(self, sock: socket.socket, pool: Pool, peer: Layout, slots: int) -> TcpSource:
        check_welcome(sock.recv(REPLY_BYTES))
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return TcpSource(sock, pool)
