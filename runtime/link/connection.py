"""One connection, from either side, on an asyncio loop.

Callbacks instead of tasks and queues: a frame is decoded and handed over in the very tick it arrives,
and everything sent within one tick leaves in one write.
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from runtime.link import handshake
from runtime.link.frames import HEARTBEAT, FrameReader, FrameTooLarge, frame
from runtime.link.handshake import Hello, LinkError, Refused
from runtime.link.keyring import Keyring, keys_of

FRAME_BYTES = 64 * 2**20
UNSENT_BYTES = 64 * 2**20
HANDSHAKE_SECONDS = 5.0
_OUT_OF_TURN = "the peer sent a handshake message out of turn"

_encode = msgspec.msgpack.Encoder().encode


class Handler(Protocol):
    """Takes a connection's messages, in order and on the loop's thread, and its one end."""

    def received(self, connection: "Connection", message: Any) -> None: ...
    def closed(self, connection: "Connection", reason: str) -> None: ...


Accept = Callable[[Hello], tuple[Any, Callable[["Connection"], Handler]]]


@dataclass(frozen=True, slots=True)
class Pulse:
    """How often we speak at least, and how long the peer may be silent. Seconds."""

    heartbeat: float = 1.0
    dead_after: float = 10.0


class Connection:
    """An open, authenticated connection. `send` and `close` never raise and never block."""

    def __init__(self, wire: "_Wire", peer: Hello) -> None:
        self.peer = peer
        self._wire = wire

    @property
    def is_closed(self) -> bool:
        return self._wire.ended is not None

    def send(self, message: Struct) -> None:
        """Queue a message for this tick's write; dropped once the connection is closed."""
        self._wire.send(_encode(message))

    def close(self, reason: str) -> None:
        """End the connection; the handler's `closed` follows soon, once."""
        self._wire.end(reason)

    async def wait_closed(self) -> None:
        """Until the socket itself is gone; what was sent before the close has then left."""
        await self._wire.gone.wait()


class _Wire(asyncio.Protocol):
    """The byte side: frames, heartbeats, and a `stage` that takes each payload (handshake, then open)."""

    def __init__(self, pulse: Pulse) -> None:
        self.ended: str | None = None
        self.stage: Callable[[bytes], None] = lambda payload: None
        self.on_end: Callable[[str], None] = lambda reason: None
        self.on_made: Callable[[], None] = lambda: None
        self._pulse = pulse
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(handshake.HANDSHAKE_FRAME_BYTES)
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._heard = self._spoke = self._loop.time()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS, self.end, "the handshake took too long")
        self.on_made()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            for payload in self._reader.feed(data):
                if payload and self.ended is None:
                    self.stage(payload)
        except FrameTooLarge as error:
            self.end(str(error))
        except msgspec.MsgspecError as error:
            self.end(f"the peer sent what is not in the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.end(str(exc) if exc else "the peer closed the connection")

    # ---- ours

    def send(self, payload: bytes) -> None:
        if self.ended is not None:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame(payload))

    def end(self, reason: str) -> None:
        if self.ended is not None:
            return
        self._flush()
        self.ended = reason
        if self._timer:
            self._timer.cancel()
        if self._transport:
            self._transport.close()
            self._loop.call_later(HANDSHAKE_SECONDS, self._transport.abort)
        self._loop.call_soon(self.on_end, reason)

    def open(self, stage: Callable[[bytes], None]) -> None:
        """The handshake is over: larger frames, heartbeats."""
        self.stage = stage
        self._reader.limit = FRAME_BYTES
        if self._timer:
            self._timer.cancel()
        self._beat()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out or self.ended is not None or self._transport is None:
            return
        self._transport.write(b"".join(out))
        self._spoke = self._loop.time()
        if self._transport.get_write_buffer_size() > UNSENT_BYTES:
            self._transport.abort()
            self.end("the peer reads too slowly")

    def _beat(self) -> None:
        now = self._loop.time()
        if now - self._heard > self._pulse.dead_after:
            assert self._transport is not None
            self._transport.abort()
            self.end(f"nothing heard for {self._pulse.dead_after:g} s")
            return
        if now - self._spoke >= self._pulse.heartbeat and self._transport is not None:
            self._transport.write(HEARTBEAT)
            self._spoke = now
        self._timer = self._loop.call_later(self._pulse.heartbeat, self._beat)


def _open(wire: _Wire, peer: Hello, inbound: Any, handler_of: Callable[[Connection], Handler]) -> Connection:
    connection = Connection(wire, peer)
    decode = msgspec.msgpack.Decoder(inbound).decode
    handler = handler_of(connection)
    wire.on_end = lambda reason: handler.closed(connection, reason)
    wire.open(lambda payload: handler.received(connection, decode(payload)))
    return connection


# ---- calling


async def dial(
    address: str,
    *,
    hello: Hello,
    secret: Keyring | bytes,
    inbound: Any,
    handler: Handler,
    timeout: float = 5.0,
    pulse: Pulse = Pulse(),
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Call a listener at "host:port" or "unix:/path". `inbound` is the type (or tagged union) it sends.

    Raises LinkError with a sentence: unreachable, not ours, refused, or `timeout` seconds over."""
    wire = _Wire(pulse)
    calling = _Calling(wire, hello, secret, lambda peer: _open(wire, peer, inbound, lambda _: handler))
    try:
        async with asyncio.timeout(timeout):
            await _connect(wire, address, tls)
            return await calling.opened
    except TimeoutError:
        wire.end("no answer")
        raise LinkError(f"{address}: no answer within {timeout:g} s") from None
    except OSError as error:
        raise LinkError(f"{address}: {error.strerror or error}") from error
    except LinkError as error:
        raise LinkError(f"{address}: {error}") from None
    except asyncio.CancelledError:
        wire.end("given up")
        raise


class _Calling:
    """The caller's side of the handshake; `opened` has its outcome."""

    def __init__(
        self, wire: _Wire, hello: Hello, secret: Keyring | bytes, opened: Callable[[Hello], Connection]
    ) -> None:
        self.opened: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._wire, self._secret, self._open = wire, secret, opened
        self._call = handshake.Call(handshake.PROTOCOL_VERSION, hello, handshake.nonce())
        wire.on_made = lambda: wire.send(handshake.encode(self._call))
        wire.on_end, wire.stage = self._failed, self._answered

    def _failed(self, reason: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(LinkError(reason))

    def _answered(self, payload: bytes) -> None:
        match handshake.decode(payload):
            case handshake.Answer(hello=peer, nonce=nonce, proof=given):
                proof = partial(handshake.proof, call=self._call, hello=peer, nonce=nonce)
                for key in keys_of(self._secret):
                    if handshake.proves(proof(key, "listener"), given):
                        break
                else:
                    self._wire.end("the peer does not know our secret")
                    return
                self._wire.send(handshake.encode(handshake.Proof(proof(key, "caller"))))
                self._wire.stage = lambda payload: self._welcomed(payload, peer)
            case handshake.Refusal(reason=reason):
                self._wire.end(reason)
            case _:
                self._wire.end(_OUT_OF_TURN)

    def _welcomed(self, payload: bytes, peer: Hello) -> None:
        match handshake.decode(payload):
            case handshake.Welcome() if not self.opened.done():
                self.opened.set_result(self._open(peer))
            case handshake.Refusal(reason=reason):
                self._wire.end(reason)
            case _:
                self._wire.end(_OUT_OF_TURN)


async def _connect(wire: _Wire, address: str, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    if path := _unix_path(address):
        await loop.create_unix_connection(lambda: wire, path)
    else:
        host, port = _host_port(address)
        await loop.create_connection(lambda: wire, host, port, ssl=tls)


# ---- listening


class Listener:
    """Takes calls until closed. `address` has the real port where 0 was asked for."""

    def __init__(self, server: asyncio.Server, address: str, wires: set[_Wire]) -> None:
        self.address = address
        self._server = server
        self._wires = wires

    async def close(self) -> None:
        """Take no more calls and end every connection."""
        self._server.close()
        wires = tuple(self._wires)
        for wire in wires:
            wire.end("the listener closed")
        await asyncio.gather(*(wire.gone.wait() for wire in wires))
        if path := _unix_path(self.address):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


async def listen(
    address: str,
    *,
    hello: Callable[[Hello], Hello],
    secret: Keyring | bytes,
    accept: Accept,
    pulse: Pulse = Pulse(),
    tls: ssl.SSLContext | None = None,
) -> Listener:
    """Take calls at an address. `hello` says who we are to this caller; `accept`, asked once the caller has
    proved the secret, gives (inbound type, handler factory) or raises Refused. Raises OSError."""
    wires: set[_Wire] = set()

    def incoming() -> _Wire:
        wire = _Wire(pulse)
        wires.add(wire)
        wire.on_end = lambda reason: wires.discard(wire)
        wire.stage = lambda payload: _called(wire, payload, hello=hello, secret=secret, accept=_tracked)
        return wire

    def _tracked(wire: _Wire, caller: Hello) -> None:
        inbound, handler_of = accept(caller)
        wire.send(handshake.encode(handshake.Welcome()))
        _open(wire, caller, inbound, handler_of)
        told = wire.on_end

        def ended(reason: str) -> None:
            wires.discard(wire)
            told(reason)

        wire.on_end = ended

    loop = asyncio.get_running_loop()
    if path := _unix_path(address):
        server = await loop.create_unix_server(incoming, path)
        return Listener(server, address, wires)
    host, port = _host_port(address)
    server = await loop.create_server(incoming, host, port, ssl=tls)
    return Listener(server, f"{host}:{server.sockets[0].getsockname()[1]}", wires)


def _called(
    wire: _Wire,
    payload: bytes,
    *,
    hello: Callable[[Hello], Hello],
    secret: Keyring | bytes,
    accept: Callable[[_Wire, Hello], None],
) -> None:
    call = handshake.decode(payload)
    if not isinstance(call, handshake.Call):
        wire.end(_OUT_OF_TURN)
        return
    try:
        handshake.check_call(call)
    except Refused as refusal:
        _refuse(wire, str(refusal))
        return
    mine, nonce, key = hello(call.hello), handshake.nonce(), keys_of(secret)[0]

    def proven(payload: bytes) -> None:
        message = handshake.decode(payload)
        expected = handshake.proof(key, "caller", call=call, hello=mine, nonce=nonce)
        if not (isinstance(message, handshake.Proof) and handshake.proves(expected, message.proof)):
            _refuse(wire, "the caller does not know our secret")
            return
        try:
            accept(wire, call.hello)
        except Refused as refusal:
            _refuse(wire, str(refusal))

    wire.stage = proven
    shown = handshake.proof(key, "listener", call=call, hello=mine, nonce=nonce)
    wire.send(handshake.encode(handshake.Answer(mine, nonce, shown)))


def _refuse(wire: _Wire, reason: str) -> None:
    wire.send(handshake.encode(handshake.Refusal(reason)))
    wire.end(reason)


# ---- addresses


def _unix_path(address: str) -> str | None:
    return address.removeprefix("unix:") if address.startswith("unix:") else None


def _host_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise LinkError("no such form of address: write host:port or unix:/path")
    return host.strip("[]"), int(port)
