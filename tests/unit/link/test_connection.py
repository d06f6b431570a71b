"""Connections over real sockets: who gets in, what arrives, and how the end is told."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from runtime.link import Connection, Hello, LinkError, Listener, Pulse, Refused, dial, handshake, listen
from runtime.link.frames import frame

SECRET = b"s" * 32
FAST = Pulse(heartbeat=0.02, dead_after=0.2)


class Note(Struct, frozen=True, tag="note"):
    text: str


def hello(name: str, kind: str = "machine") -> Hello:
    return Hello(kind=kind, name=name, instance="1", host="h", body=msgspec.Raw(b"\x01"))


class Recorder:
    """A handler whose news can be awaited with a deadline."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[Any] = asyncio.Queue()

    def received(self, connection: Connection, message: Any) -> None:
        self.news.put_nowait(message)

    def closed(self, connection: Connection, reason: str) -> None:
        self.news.put_nowait(reason)

    async def next(self) -> Any:
        return await asyncio.wait_for(self.news.get(), 5)


@pytest.fixture(autouse=True)
async def dialed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Ends what a test dialed, so that no socket outlives it."""
    made: list[Connection] = []
    real = dial

    async def noted(*args: Any, **options: Any) -> Connection:
        made.append(connection := await real(*args, **options))
        return connection

    monkeypatch.setitem(globals(), "dial", noted)
    yield
    for connection in made:
        connection.close("the test is over")
        await asyncio.wait_for(connection.wait_closed(), 5)


class Place:
    """A listener that welcomes everyone and keeps the connections it took."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.taken: asyncio.Queue[Connection] = asyncio.Queue()

    def accept(self, caller: Hello) -> tuple[Any, Callable[[Connection], Recorder]]:
        if caller.name == "stranger":
            raise Refused("layers: 4 here, 5 at the peer")

        def handler(connection: Connection) -> Recorder:
            self.taken.put_nowait(connection)
            return self.recorder

        return Note, handler


Ends = tuple[Listener, Connection, Connection, Recorder, Recorder]


async def pair(address: str, pulse: Pulse = FAST) -> Ends:
    place, mine = Place(), Recorder()
    listener = await listen(
        address, hello=lambda _: hello("b"), secret=SECRET, accept=place.accept, pulse=pulse
    )
    ours = await dial(
        listener.address, hello=hello("a"), secret=SECRET, inbound=Note, handler=mine, pulse=pulse
    )
    theirs = await asyncio.wait_for(place.taken.get(), 5)
    return listener, ours, theirs, mine, place.recorder


@pytest.fixture(params=["127.0.0.1:0", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/link" if request.param == "unix" else request.param


async def test_both_sides_know_each_other_and_messages_keep_their_order(address: str) -> None:
    listener, ours, theirs, mine, other = await pair(address)
    assert (ours.peer.name, theirs.peer.name) == ("b", "a")
    assert bytes(ours.peer.body) == b"\x01"
    for number in range(100):
        ours.send(Note(str(number)))
    theirs.send(Note("back"))
    assert [(await other.next()).text for _ in range(100)] == [str(n) for n in range(100)]
    assert await mine.next() == Note("back")
    await listener.close()


async def test_the_end_is_told_once_on_both_sides(address: str) -> None:
    listener, ours, theirs, mine, other = await pair(address)
    ours.send(Note("last"))
    ours.close("enough")
    ours.close("again")
    ours.send(Note("into the void"))
    assert await mine.next() == "enough"
    assert await other.next() == Note("last")
    assert await other.next() == "the peer closed the connection"
    await asyncio.sleep(0)
    assert theirs.is_closed
    assert mine.news.empty()
    assert other.news.empty()
    await listener.close()


async def test_a_closed_listener_leaves_no_socket_file(tmp_path: Path) -> None:
    listener, _, _, mine, _ = await pair(f"unix:{tmp_path}/link")
    await listener.close()
    assert "closed" in await mine.next()
    assert os.listdir(tmp_path) == []


async def test_heartbeats_keep_an_idle_connection_open_and_silence_ends_it() -> None:
    listener, ours, theirs, mine, _ = await pair("127.0.0.1:0")
    await asyncio.sleep(2 * FAST.dead_after)
    assert not ours.is_closed
    assert not theirs.is_closed
    wire = theirs._wire
    assert wire._timer is not None
    wire._timer.cancel()  # the peer falls silent without closing
    assert "nothing heard" in await mine.next()
    await listener.close()


async def test_a_wrong_secret_is_refused_on_either_side() -> None:
    listener, *_ = await pair("127.0.0.1:0")
    with pytest.raises(LinkError, match="does not know our secret"):
        await dial(listener.address, hello=hello("x"), secret=b"z" * 32, inbound=Note, handler=Recorder())
    await listener.close()


async def test_a_caller_without_the_secret_never_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that does not check the listener's proof."""
    listener, *_ = await pair("127.0.0.1:0")
    with monkeypatch.context() as patch:
        calls = iter([True, False])
        patch.setattr(handshake, "proves", lambda expected, given: next(calls))
        with pytest.raises(LinkError, match="the caller does not know our secret"):
            await dial(listener.address, hello=hello("x"), secret=b"z" * 32, inbound=Note, handler=Recorder())
    await listener.close()


async def test_a_refusal_reaches_the_caller_as_a_sentence() -> None:
    listener, *_ = await pair("127.0.0.1:0")
    with pytest.raises(LinkError, match="layers: 4 here, 5 at the peer"):
        await dial(listener.address, hello=hello("stranger"), secret=SECRET, inbound=Note, handler=Recorder())
    await listener.close()


async def test_another_protocol_version_is_refused_by_number() -> None:
    listener, *_ = await pair("127.0.0.1:0")
    reader, writer = await asyncio.open_connection(*listener.address.split(":"))
    call = handshake.Call(2, hello("a"), handshake.nonce())
    writer.write(frame(handshake.encode(call)))
    payload = (await asyncio.wait_for(reader.read(), 5))[4:]
    assert "version 2 called, 1 is spoken here" in str(handshake.decode(payload))
    writer.close()
    await listener.close()


async def test_garbage_and_oversized_frames_end_the_connection_not_the_listener() -> None:
    listener, *_ = await pair("127.0.0.1:0")
    host, port = listener.address.split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x03abc"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    again = await dial(listener.address, hello=hello("a"), secret=SECRET, inbound=Note, handler=Recorder())
    assert not again.is_closed
    await listener.close()


async def test_a_message_outside_the_protocol_ends_the_connection() -> None:
    class Other(Struct, frozen=True, tag="other"):
        pass

    listener, ours, _, _, other = await pair("127.0.0.1:0")
    ours.send(Other())
    assert "not in the protocol" in await other.next()
    await listener.close()


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "unix:/nonexistent/socket"])
async def test_an_unreachable_address_is_one_sentence(address: str) -> None:
    with pytest.raises(LinkError, match=address):
        await dial(address, hello=hello("a"), secret=SECRET, inbound=Note, handler=Recorder())


async def test_a_listener_that_never_answers_costs_the_timeout_only() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(LinkError, match=r"no answer within 0\.05 s"):
        await dial(
            f"127.0.0.1:{port}", hello=hello("a"), secret=SECRET, inbound=Note, handler=Recorder(),
            timeout=0.05,
        )  # fmt: skip
    server.close()
