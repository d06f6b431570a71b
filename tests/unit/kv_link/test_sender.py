"""The sending thread: what waits is looked at again before it moves, and every end is told once."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from runtime.kv_link.layout import Layout
from runtime.kv_link.ledger import SLOTS, Ledger
from runtime.kv_link.messages import Armed, Offer
from runtime.kv_link.pool import Pool
from runtime.kv_link.runs import Run
from runtime.kv_link.sender import Item, Parcel, Route, Sender, SenderEvents
from runtime.kv_link.transport import Faults, Limits, Place, Transport, TransportError
from runtime.kv_link.transports import TRANSPORTS
from tests.unit.kv_link.machines import LAYOUT

WITHIN = 10.0


@dataclass
class Way:
    """A transport and its source: notes what is put, and holds puts of a layer while it is shut."""

    name: str = "fake"
    needs_same_host: bool = False
    refuses: str = ""
    done: list[tuple[int, list[Run]]] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    open_gate: threading.Event = field(default_factory=threading.Event)
    broken: bool = False
    closed: bool = False
    peer: socket.socket = field(init=False)

    def connect(self, address: str, seconds: float) -> socket.socket:
        assert address == f"{self.name}-address"
        ours, self.peer = socket.socketpair()
        return ours

    def open(self, sock: socket.socket, pool: Pool, peer: Layout, slots: int) -> "Way":
        sock.close()
        self.peer.close()
        if self.refuses:
            raise TransportError(self.refuses)
        return self

    def put(self, ticket: Armed, layer: int, runs: Sequence[Run]) -> None:
        self.held.set()
        assert self.open_gate.wait(WITHIN)
        if self.broken:
            raise BrokenPipeError(32, "Broken pipe")
        self.done.append((layer, list(runs)))

    def signal(self, ticket: Armed, puts: int) -> None:
        self.signals.append((ticket.epoch, puts))

    def cut(self) -> None:
        self.broken = True
        self.open_gate.set()

    def close(self) -> None:
        self.closed = True


@dataclass
class Desk:
    sender: Sender
    way: Way
    news: "queue.Queue[tuple[str, Any]]"

    def next(self) -> tuple[str, Any]:
        return self.news.get(timeout=WITHIN)


Make = Callable[..., Desk]


@pytest.fixture
def make() -> Iterator[Make]:
    senders: list[Sender] = []

    def build(*ways: Way, put_bytes: int = 2 * LAYOUT.block_bytes) -> Desk:
        news: queue.Queue[tuple[str, Any]] = queue.Queue()

        def told(kind: str) -> Callable[[Any], None]:
            return lambda what: news.put((kind, what))

        offer = Offer(1, b"s" * 16, {way.name: f"{way.name}-address" for way in ways}, 8)
        sender = Sender(
            Pool.over(LAYOUT, bytearray(LAYOUT.total_bytes)),
            Route(offer, [cast("Transport", way) for way in ways], LAYOUT),
            SenderEvents(told("opened"), told("sealed"), told("drained"), told("broken")),
            limits=Limits(put_bytes=put_bytes),
            faults=Faults(),
        )
        senders.append(sender)
        sender.start()
        return Desk(sender, ways[-1], news)

    yield build
    for sender in senders:
        sender.close()
        sender.join(WITHIN)
        assert not sender.is_alive()


def parcel(epoch: int = 1, blocks: tuple[int, ...] = (10, 11, 12, 13)) -> Parcel:
    return Parcel(Armed(f"t{epoch}", epoch, 0, blocks, 9.0))


def item(layer: int = 0, blocks: tuple[int, ...] = (0, 1, 2, 3)) -> Item:
    return Item(layer, 0, blocks)


def test_a_sealed_parcel_was_put_in_portions_then_signalled(make: Make) -> None:
    desk = make(Way())
    desk.way.open_gate.set()
    mine = parcel()
    desk.sender.offer(mine, [item(0), item(1)])
    desk.sender.seal(mine)
    assert [desk.next(), desk.next()] == [("opened", "fake"), ("sealed", mine)]
    portions = [[Run(0, 10, 2)], [Run(2, 12, 2)]]
    assert desk.way.done == [(layer, portion) for layer in (0, 1) for portion in portions]
    assert desk.way.signals == [(1, 4)]
    assert (mine.puts, mine.bytes) == (4, 8 * LAYOUT.block_bytes)
    assert 0 < mine.started <= mine.ended


@pytest.mark.fault("KV-4")
def test_a_stopped_parcel_moves_no_further_portion(make: Make) -> None:
    desk = make(Way())
    mine = parcel()
    desk.sender.offer(mine, [item(0), item(1)])
    desk.sender.seal(mine)
    assert desk.way.held.wait(WITHIN)
    desk.sender.stop(mine)
    desk.next()
    assert desk.news.empty()  # its first portion is under way: nothing is drained yet
    desk.way.open_gate.set()
    assert desk.next() == ("drained", mine)
    assert desk.way.done == [(0, [Run(0, 10, 2)])]
    assert desk.way.signals == []


def test_what_waits_behind_another_is_drained_at_once_and_only_once(make: Make) -> None:
    desk = make(Way())
    busy, mine = parcel(1), parcel(2)
    desk.sender.offer(busy, [item()])
    assert desk.way.held.wait(WITHIN)
    desk.sender.offer(mine, [item()])
    desk.sender.seal(mine)
    desk.next()
    desk.sender.stop(mine)
    assert desk.next() == ("drained", mine)
    desk.sender.stop(mine)
    desk.sender.offer(mine, [item()])
    desk.sender.seal(mine)
    desk.way.open_gate.set()
    desk.sender.seal(busy)
    assert desk.next() == ("sealed", busy)
    assert desk.news.empty()
    assert [layer for layer, _ in desk.way.done] == [0, 0]


def test_a_sealed_parcel_is_not_drained_besides(make: Make) -> None:
    desk = make(Way())
    desk.way.open_gate.set()
    mine = parcel()
    desk.sender.offer(mine, [item()])
    desk.sender.seal(mine)
    assert [desk.next()[0], desk.next()[0]] == ["opened", "sealed"]
    desk.sender.stop(mine)
    assert desk.news.empty()


def test_a_put_that_is_stuck_is_cut_and_everything_is_told(make: Make) -> None:
    desk = make(Way())
    stuck, waiting = parcel(1), parcel(2)
    desk.sender.offer(stuck, [item()])
    desk.sender.offer(waiting, [item()])
    assert desk.way.held.wait(WITHIN)
    desk.next()
    desk.sender.stop(stuck)
    desk.sender.cut()
    assert desk.next() == ("drained", stuck)
    assert desk.next() == ("broken", "the KV data connection broke: Broken pipe")
    assert desk.way.closed
    desk.sender.stop(waiting)
    assert desk.next() == ("drained", waiting)
    assert desk.way.done == []


def test_ways_are_tried_in_order(make: Make) -> None:
    desk = make(Way("first", refuses="no memory to share"), Way("second"))
    assert desk.next() == ("opened", "second")


def test_no_way_left_is_told_with_every_reason(make: Make) -> None:
    desk = make(Way("first", refuses="no memory to share"), Way("second", refuses="no route"))
    kind, reason = desk.next()
    assert kind == "broken"
    assert "first: no memory to share; second: no route" in reason
    desk.sender.stop(mine := parcel())
    assert desk.next() == ("drained", mine)


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_a_door_that_nobody_answers_is_given_up(name: str) -> None:
    """The peer hangs: the kernel takes the call, and nothing more is heard."""
    pool, ledger = Pool.shared(LAYOUT), Ledger.create(layers=LAYOUT.layers, blocks=LAYOUT.blocks)
    way = TRANSPORTS[name]
    bound = way.bind(Place("t", pool, ledger, "127.0.0.1", None))
    assert bound
    told: queue.Queue[str] = queue.Queue()
    sender = Sender(
        pool,
        Route(Offer(1, b"s" * 16, {name: bound[1]}, SLOTS), [way], LAYOUT),
        SenderEvents(told.put, lambda _: None, lambda _: None, told.put),
        limits=Limits(open_within=0.05),
        faults=Faults(),
    )
    sender.start()
    assert f"{name}: timed out" in told.get(timeout=WITHIN)
    sender.join(WITHIN)
    bound[0].close()
    ledger.close()
    pool.close()


def test_closing_ends_a_thread_that_is_stuck(make: Make) -> None:
    desk = make(Way())
    mine = parcel()
    desk.sender.offer(mine, [item()])
    assert desk.way.held.wait(WITHIN)
    desk.sender.close()
    desk.sender.join(WITHIN)
    assert desk.way.closed
    assert not desk.sender.is_alive()
