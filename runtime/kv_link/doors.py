"""The token machine's doors: where prompt machines fetch their way into its memory.

One listening socket per transport. A door is announced over an authenticated connection, opened by its
secret, once, and can be locked again: what was never opened needs no fence.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from runtime.kv_link.messages import Offer
from runtime.kv_link.preface import PREFACE, SECRET_BYTES, door_of, opens, sorry
from runtime.kv_link.transport import Limits, Place, Transport, TransportError

_MOST_AT_THE_DOOR = 64
_ACCEPT_PAUSE = 0.1
_log = logging.getLogger(__name__)

Welcome = Callable[[Transport, socket.socket], None]
"""Lets a peer in; raises TransportError if this way cannot be had."""


@dataclass(frozen=True, slots=True)
class _Door:
    secret: bytes
    welcome: Welcome


class Doors:
    """Opened with `start`, on an asyncio loop."""

    def __init__(self, place: Place, limits: Limits) -> None:
        self.turned_away = 0
        self._place = place
        self._limits = limits
        self._ways: dict[str, str] = {}
        self._listeners: list[tuple[Transport, socket.socket, str]] = []
        self._doors: dict[int, _Door] = {}
        self._next = 0
        self._greetings: dict[asyncio.Task[None], socket.socket] = {}
        self._closed = False

    def start(self, transports: list[Transport]) -> None:
        """Listen for each of these transports that this machine can serve. Raises TransportError."""
        for transport in transports:
            bound = self._bind(transport, needed=len(transports) == 1 or not transport.needs_same_host)
            if bound is None:
                continue
            listener, address = bound
            listener.setblocking(False)
            self._ways[transport.name] = address
            self._listeners.append((transport, listener, address))
            self._watch(transport, listener)

    @property
    def ways(self) -> dict[str, str]:
        """Transport name to address, best first."""
        return dict(self._ways)

    def announce(self, welcome: Welcome, *, slots: int) -> Offer:
        """A new door, open until a peer went through or it is locked."""
        self._next += 1
        secret = secrets.token_bytes(SECRET_BYTES)
        self._doors[self._next] = _Door(secret, welcome)
        return Offer(self._next, secret, self.ways, slots)

    def lock(self, door: int) -> None:
        """Nobody gets through this door any more."""
        self._doors.pop(door, None)

    async def close(self) -> None:
        """Lock everything and stop listening."""
        self._closed = True
        self._doors.clear()
        for transport, listener, address in self._listeners:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
            transport.unbind(address)
        self._listeners.clear()
        greetings = dict(self._greetings)
        for greeting in greetings:
            greeting.cancel()
        await asyncio.gather(*greetings, return_exceptions=True)
        for greeting, sock in greetings.items():
            if greeting.cancelled():
                sock.close()

    def _bind(self, transport: Transport, *, needed: bool) -> tuple[socket.socket, str] | None:
        try:
            return transport.bind(self._place)
        except TransportError as error:
            if needed:
                raise
            _log.warning("%s; KV from this host comes another way", error)
            return None

    def _watch(self, transport: Transport, listener: socket.socket) -> None:
        if not self._closed:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._knock, transport, listener)

    def _knock(self, transport: Transport, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _log.warning("KV data connections cannot be taken now: %s", error.strerror)
            loop.remove_reader(listener.fileno())
            loop.call_later(_ACCEPT_PAUSE, self._watch, transport, listener)
            return
        if len(self._greetings) >= _MOST_AT_THE_DOOR:
            sock.close()
            return
        sock.setblocking(False)
        greeting = loop.create_task(self._greet(transport, sock))
        self._greetings[greeting] = sock
        greeting.add_done_callback(self._greetings.pop)

    async def _greet(self, transport: Transport, sock: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._limits.open_within):
                data = await _exactly(sock, PREFACE.size)
            self._let_in(transport, sock, data)
        except (OSError, EOFError, TimeoutError):
            self.turned_away += 1
            sock.close()

    def _let_in(self, transport: Transport, sock: socket.socket, data: bytes) -> None:
        named = door_of(data)
        door = self._doors.get(named[0]) if named else None
        if named is None or door is None or not opens(door.secret, named[1]):
            _log.warning("a caller without the right secret was turned away at the %s door", transport.name)
            raise EOFError
        try:
            door.welcome(transport, sock)
        except TransportError as error:
            with contextlib.suppress(OSError):
                sock.send(sorry(str(error)))
            sock.close()
            return
        self.lock(named[0])


async def _exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        piece = await loop.sock_recv(sock, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
