"""The tcp receiver writes what a ticket allows and nothing else."""

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kv_link.ledger import Ledger, signal
from runtime.kv_link.pool import Pool
from runtime.kv_link.tickets import Ticket
from runtime.kv_link.transports import frames
from runtime.kv_link.transports.receiver import Receiver, ReceiverEvents
from tests.unit.kv_link.machines import LAYOUT

BLOCK = LAYOUT.block_bytes
WITHIN = 10.0


@dataclass
class Desk:
    """A receiver, the peer's end of its connection, and its news."""

    receiver: Receiver
    peer: socket.socket
    pool: Pool
    ledger: Ledger
    news: "queue.Queue[tuple[Any, ...]]"

    def put(self, ticket: Ticket, layer: int, runs: list[tuple[int, int]], fill: bytes) -> None:
        size = sum(count for _, count in runs) * BLOCK
        self.peer.sendall(frames.put_header(layer, ticket.epoch, ticket.slot, runs) + fill * size)

    def signal(self, ticket: Ticket, puts: int) -> None:
        self.peer.sendall(frames.signal_frame(ticket.epoch, ticket.slot, puts))

    def next(self) -> tuple[Any, ...]:
        return self.news.get(timeout=WITHIN)

    def untouched(self) -> bool:
        return not any(self.pool.memory)


@pytest.fixture
def desk() -> Iterator[Desk]:
    ours, peer = socket.socketpair()
    peer.settimeout(WITHIN)
    pool = Pool.over(LAYOUT, bytearray(LAYOUT.total_bytes))
    ledger = Ledger.create(layers=LAYOUT.layers, blocks=LAYOUT.blocks)
    news: queue.Queue[tuple[Any, ...]] = queue.Queue()

    def told(kind: str) -> Callable[[Any], None]:
        return lambda what: news.put((kind, what))

    receiver = Receiver(ours, pool, ledger, ReceiverEvents(told("signalled"), told("quiet"), told("gone")))
    receiver.start()
    yield Desk(receiver, peer, pool, ledger, news)
    receiver.cut()
    receiver.join(WITHIN)
    assert not receiver.is_alive()
    peer.close()
    ledger.close()


def ticket(blocks: tuple[int, ...] = (4, 5, 9), *, epoch: int = 3, slot: int = 1) -> Ticket:
    return Ticket("t", slot, epoch, blocks, 0.0)


def test_a_put_lands_in_its_blocks_and_is_stamped_and_counted(desk: Desk) -> None:
    desk.receiver.admit(mine := ticket())
    desk.put(mine, 1, [(4, 2), (9, 1)], b"k")
    desk.signal(mine, 2)
    assert desk.next() == ("signalled", 3)
    assert bytes(desk.pool.blocks(1, 4, 2)) == b"k" * 2 * BLOCK
    assert bytes(desk.pool.blocks(1, 9, 1)) == b"k" * BLOCK
    assert bytes(desk.pool.memory).count(b"k") == 3 * BLOCK
    assert desk.ledger.word(1) == signal(3, 2)
    assert desk.ledger.missing((4, 5, 9), 3) == 6
    seen = desk.receiver.seen(3)
    assert seen is not None
    assert (seen.puts, seen.bytes, seen.signalled) == (2, 3 * BLOCK, True)


@pytest.mark.fault("KV-4")
@pytest.mark.parametrize(
    ("layer", "runs", "why"),
    [
        (0, [(6, 1)], "block 6 is not armed"),
        (0, [(4, 3)], "block 6 is not armed"),
        (0, [(4, 1), (3, 1)], "block 3 is not armed"),
        (3, [(4, 1)], "layer 3 does not exist"),
        (0, [(LAYOUT.blocks, 1)], "not armed"),
        (0, [(2**32 - 1, 1)], "not armed"),
        (0, [(4, 0)], "empty or longer"),
        (0, [(0, 2**32 - 1)], "empty or longer"),
        (0, [(4, 1), (4, 1)], "came twice"),
        (0, [], "0 runs"),
    ],
)
def test_a_put_that_no_ticket_allows_ends_the_connection_unwritten(
    desk: Desk, layer: int, runs: list[tuple[int, int]], why: str
) -> None:
    desk.receiver.admit(mine := ticket())
    desk.peer.sendall(frames.put_header(layer, mine.epoch, mine.slot, runs) + b"x" * 8 * BLOCK)
    kind, reason = desk.next()
    assert kind == "gone"
    assert why in reason
    assert desk.untouched()


def test_a_block_that_came_already_is_not_written_again(desk: Desk) -> None:
    desk.receiver.admit(mine := ticket())
    desk.put(mine, 0, [(4, 1)], b"a")
    desk.put(mine, 1, [(4, 1)], b"a")
    desk.put(mine, 0, [(4, 1)], b"b")
    assert desk.next()[0] == "gone"
    assert bytes(desk.pool.blocks(0, 4, 1)) == b"a" * BLOCK


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("!BxHIII", 3, 0, 3, 1, 1),
        struct.pack("!BxHIII", frames.PUT, 0, 3, 2, 1) + frames.RUN.pack(4, 1),  # another slot
        struct.pack("!BxHIII", frames.SIGNAL, 0, 3, 2, 1),
        struct.pack("!BxHIII", frames.PUT, 0, 3, 1, 256) + frames.RUN.pack(4, 1) * 256,
        struct.pack("!BxHIII", frames.PUT, 0, 3, 1, 2**32 - 1),
    ],
)
def test_frames_that_make_no_sense_end_the_connection(desk: Desk, raw: bytes) -> None:
    desk.receiver.admit(ticket())
    desk.peer.sendall(raw)
    assert desk.next()[0] == "gone"
    assert desk.untouched()
    assert desk.ledger.word(1) == desk.ledger.word(2) == 0


@pytest.mark.fault("KV-4")
@pytest.mark.parametrize("epoch", [2, 4])
def test_puts_and_signals_of_another_epoch_are_thrown_away(desk: Desk, epoch: int) -> None:
    desk.receiver.admit(mine := ticket())
    stray = ticket(epoch=epoch)
    desk.put(stray, 0, [(4, 2)], b"x")
    desk.signal(stray, 1)
    desk.put(mine, 0, [(9, 1)], b"k")  # and the connection lives on
    desk.signal(mine, 1)
    assert desk.next() == ("signalled", 3)
    assert bytes(desk.pool.memory).count(b"x") == 0
    assert desk.ledger.word(1) == signal(3, 1)


@pytest.mark.fault("KV-4")
def test_a_dismissed_ticket_takes_nothing_more(desk: Desk) -> None:
    desk.receiver.admit(mine := ticket())
    desk.receiver.admit(other := ticket((1, 2), epoch=5, slot=2))
    assert desk.receiver.dismiss(mine.epoch)
    desk.put(mine, 0, [(4, 2)], b"x")
    desk.signal(mine, 1)
    desk.signal(other, 0)
    assert desk.next() == ("signalled", 5)
    assert desk.untouched()


@pytest.mark.fault("KV-4")
def test_a_put_under_way_is_told_when_it_is_over(desk: Desk) -> None:
    desk.receiver.admit(mine := ticket())
    desk.put(mine, 1, [(4, 1)], b"k")
    desk.signal(mine, 1)
    assert desk.next() == ("signalled", 3)
    desk.peer.sendall(frames.put_header(0, mine.epoch, mine.slot, [(4, 2)]) + b"k" * BLOCK)
    until = time.monotonic() + WITHIN
    while not desk.pool.blocks(0, 4, 1)[0] and time.monotonic() < until:  # half of it comes: it is under way
        threading.Event().wait(0.001)
    assert not desk.receiver.dismiss(mine.epoch)
    assert desk.news.empty()
    desk.peer.sendall(b"k" * BLOCK)
    assert desk.next() == ("quiet", 3)


def test_a_cut_connection_writes_nothing_more(desk: Desk) -> None:
    desk.receiver.admit(mine := ticket())
    desk.receiver.cut()
    assert desk.next()[0] == "gone"
    with pytest.raises(OSError):
        desk.put(mine, 0, [(4, 1)], b"x")
    assert desk.untouched()


def test_the_peers_end_is_told(desk: Desk) -> None:
    desk.peer.sendall(frames.put_header(0, 3, 1, [(4, 1)])[:7])
    desk.peer.shutdown(socket.SHUT_RDWR)
    assert desk.next() == ("gone", "the peer closed the data connection")


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=40), seed=st.binary(min_size=1, max_size=8))
def test_views_arrive_whole_through_a_narrow_socket(sizes: list[int], seed: bytes) -> None:
    left, right = socket.socketpair()
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    left.settimeout(WITHIN)
    right.settimeout(WITHIN)
    data = [bytes((index + byte) % 256 for byte in range(size)) for index, size in enumerate(sizes)]
    into = [memoryview(bytearray(size)) for size in sizes]
    sender = threading.Thread(target=frames.send_all, args=(left, [memoryview(piece) for piece in data]))
    sender.start()
    frames.receive_into(right, list(into))
    sender.join(WITHIN)
    left.close()
    right.close()
    assert [bytes(view) for view in into] == data
