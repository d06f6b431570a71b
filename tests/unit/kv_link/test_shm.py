"""Shared memory goes only to a process that is ours and whose death would be noticed."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime.kv_link.ledger import SLOTS, Ledger
from runtime.kv_link.memory import SharedMemory
from runtime.kv_link.messages import Armed
from runtime.kv_link.pool import Pool
from runtime.kv_link.preface import sorry
from runtime.kv_link.runs import Run
from runtime.kv_link.transport import Place, SinkEvents, TransportError
from runtime.kv_link.transports.shm import Shm
from tests.unit.kv_link.machines import LAYOUT

WITHIN = 5.0


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    pool, ledger = Pool.shared(LAYOUT), Ledger.create(layers=3, blocks=32)
    yield Place("t", pool, ledger, "", None)
    ledger.close()
    pool.close()


def quiet_events(news: "asyncio.Queue[tuple[str, Any]] | None" = None) -> SinkEvents:
    def told(kind: str) -> Any:
        return lambda what: news.put_nowait((kind, what)) if news else None

    return SinkEvents(told("signalled"), told("quiet"), told("lost"), told("gone"))


class Stranger(socket.socket):
    """A socket whose peer the kernel describes as we like."""

    pid = uid = 0

    def getsockopt(self, *args: object) -> bytes:  # type: ignore[override]
        return b"".join(number.to_bytes(4, "little") for number in (self.pid, self.uid, 0))


@pytest.mark.parametrize(
    ("uid", "pid", "why"), [(1, 1, "user"), (0, 0, "process namespace"), (0, 2**22 + 1, "watched")]
)
async def test_memory_is_passed_to_no_stranger(
    place: Place, monkeypatch: pytest.MonkeyPatch, uid: int, pid: int, why: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    ours, peer = socket.socketpair()
    stranger = Stranger(fileno=ours.detach())
    stranger.uid, stranger.pid = uid, pid
    peer.setblocking(False)
    with pytest.raises(TransportError, match=why):
        Shm().serve(stranger, place, [], quiet_events())
    with pytest.raises(BlockingIOError):
        socket.recv_fds(peer, 1, 2)
    stranger.close()
    peer.close()


@pytest.mark.parametrize("farewell", [True, False])
async def test_only_a_farewell_means_that_the_writer_is_gone(place: Place, farewell: bool) -> None:
    news: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    sink = Shm().serve(ours, place, [], quiet_events(news))
    source = Shm().open(peer, place.pool, LAYOUT, SLOTS)
    source.put(Armed("a", 7, 3, (9, 10), 1.0), 1, [Run(0, 9, 2)])
    assert place.ledger.is_stamped(1, 10, 7)
    if farewell:
        source.close()
        assert await asyncio.wait_for(news.get(), WITHIN) == ("gone", "the peer let go of our memory")
    else:
        peer.close()
        assert (await asyncio.wait_for(news.get(), WITHIN))[0] == "lost"
        source._ledger.close()
        source._memory.close()
    assert news.empty()
    assert not sink.force()
    sink.close()


async def test_a_refusal_is_a_sentence(place: Place) -> None:
    ours, peer = socket.socketpair()
    ours.send(sorry("not today"))
    with pytest.raises(TransportError, match="not today"):
        Shm().open(peer, place.pool, LAYOUT, SLOTS)
    ours.close()
    peer.close()


@pytest.mark.parametrize("passed", ["nothing", "one", "wrong sizes", "wrong ledger"])
async def test_memory_that_is_not_as_announced_is_not_used_and_let_go(place: Place, passed: str) -> None:
    small = SharedMemory.create("small", 64)
    pool_fd, ledger_fd = place.pool.fd, place.ledger.memory.fd
    assert pool_fd is not None
    fds = {
        "nothing": [],
        "one": [pool_fd],
        "wrong sizes": [small.fd, ledger_fd],
        "wrong ledger": [pool_fd, small.fd],
    }[passed]
    ours, peer = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(ours, [b"\x00"], fds)
    with pytest.raises(TransportError, match="shm: "):
        Shm().open(peer, place.pool, LAYOUT, SLOTS)
    assert len(os.listdir("/proc/self/fd")) == before
    assert ours.recv(1) == b"\x02"  # a farewell: the other side need not wait for us to die
    for sock in (ours, peer):
        sock.close()
    small.close()
