"""The sending thread of a prompt machine: one per token machine that armed tickets with it.

Puts wait here in order and are looked at once more right before their bytes move. Stopping one forgets what
it has queued; if a put of it is under way, its end is told. Memory is bounded by what the engine offers:
each block of each layer of a ticket once.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from runtime.kv_link.layout import Layout
from runtime.kv_link.messages import Armed, Offer
from runtime.kv_link.pool import Pool
from runtime.kv_link.preface import preface
from runtime.kv_link.runs import Run, plan
from runtime.kv_link.transport import Faults, Limits, Source, Transport, TransportError
from runtime.kv_link.transports.frames import MOST_RUNS

_log = logging.getLogger(__name__)


class Item(NamedTuple):
    """Blocks of a layer, in logical order from `first` on, to be put."""

    layer: int
    first: int
    blocks: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Parcel:
    """One transfer on its way, as the sender sees it. The counts are the sending thread's."""

    ticket: Armed
    stopped: bool = False
    told: bool = False
    puts: int = 0
    bytes: int = 0
    started: float = 0.0
    ended: float = 0.0
    items: list[Item] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SenderEvents:
    """Called on the sender's thread, or inside `stop`. `opened`: the transport in use. `sealed`: all put
    and signalled. `drained`: a stopped parcel's blocks are not read any more. `broken`: no way to the peer
    (any more); every parcel has been told as drained or will be when it is stopped."""

    opened: Callable[[str], None]
    sealed: Callable[[Parcel], None]
    drained: Callable[[Parcel], None]
    broken: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Route:
    """How to get to a peer: what it offers, in the order to try, and what its pool looks like."""

    offer: Offer
    ways: list[Transport]
    peer: Layout


class Sender(threading.Thread):
    """`offer` and `seal` come from the engine's thread, `stop` and `close` from any."""

    def __init__(
        self, pool: Pool, route: Route, events: SenderEvents, *, limits: Limits, faults: Faults
    ) -> None:
        super().__init__(name="kv-sender", daemon=True)
        self._pool = pool
        self._route = route
        self._events = events
        self._limits = limits
        self._faults = faults
        self._most_blocks = max(1, limits.put_bytes // pool.layout.block_bytes)
        self._turn = threading.Condition()
        self._queue: deque[tuple[Parcel, Item | None]] = deque()
        self._current: Parcel | None = None
        self._closing = False
        self._source: Source | None = None

    # ---- other threads' side

    def offer(self, parcel: Parcel, items: Sequence[Item]) -> None:
        """Put these blocks, behind everything offered before."""
        self._enqueue([(parcel, item) for item in items])

    def seal(self, parcel: Parcel) -> None:
        """Signal once everything offered is put."""
        self._enqueue([(parcel, None)])

    def stop(self, parcel: Parcel) -> None:
        """Put nothing more of a parcel; `drained` is called once, now or when its put under way is over."""
        with self._turn:
            parcel.stopped = True
            self._queue = deque(entry for entry in self._queue if entry[0] is not parcel)
            tell = self._current is not parcel and not parcel.told
            parcel.told |= tell
        if tell:
            self._events.drained(parcel)

    def cut(self) -> None:
        """Make a put that is stuck fail; everything on this way is lost."""
        source = self._source
        if source:
            source.cut()

    def close(self) -> None:
        """End the thread soon: what is queued is forgotten, a blocked put is cut."""
        with self._turn:
            self._closing = True
            self._queue.clear()
            self._turn.notify()
        self.cut()

    def _enqueue(self, entries: list[tuple[Parcel, Item | None]]) -> None:
        with self._turn:
            if self._closing:
                return
            self._queue.extend(entry for entry in entries if not entry[0].stopped)
            self._turn.notify()

    # ---- the thread

    def run(self) -> None:
        reason = "the KV sender failed"
        try:
            self._source = source = self._open()
        except TransportError as error:
            self._end(str(error))
            return
        self._events.opened(source.name)
        try:
            while (entry := self._next()) is not None:
                self._handle(source, *entry)
                self._done(*entry)
            reason = "the KV link was closed"
        except OSError as error:
            reason = f"the KV data connection broke: {error.strerror or error}"
        finally:
            source.close()
            self._end(reason)

    def _next(self) -> tuple[Parcel, Item | None] | None:
        with self._turn:
            while not self._queue and not self._closing:
                self._turn.wait()
            if self._closing:
                return None
            entry = self._queue.popleft()
            self._current = entry[0]
            return entry

    def _handle(self, source: Source, parcel: Parcel, item: Item | None) -> None:
        if item is not None:
            self._put(source, parcel, item)
            return
        for ticket, puts in self._faults.signal(parcel.ticket, parcel.puts):
            source.signal(ticket, puts)

    def _done(self, parcel: Parcel, item: Item | None) -> None:
        with self._turn:
            self._current = None
            drained = parcel.stopped and not parcel.told
            sealed = item is None and not parcel.stopped
            parcel.told |= drained or sealed
        if drained:
            self._events.drained(parcel)
        elif sealed:
            self._events.sealed(parcel)

    def _put(self, source: Source, parcel: Parcel, item: Item) -> None:
        targets = parcel.ticket.blocks[item.first : item.first + len(item.blocks)]
        runs = plan(zip(item.blocks, targets, strict=True), most=self._most_blocks)
        for put in _bundles(runs, self._most_blocks):
            if parcel.stopped:
                return
            parcel.started = parcel.started or time.monotonic()
            for layer, bundle in self._faults.put(parcel.ticket.transfer, item.layer, put):
                source.put(parcel.ticket, layer, bundle)
            parcel.puts += len(put)
            parcel.bytes += sum(run.length for run in put) * self._pool.layout.block_bytes
            parcel.ended = time.monotonic()

    def _end(self, reason: str) -> None:
        with self._turn:
            self._closing = True
            self._queue.clear()
            current, self._current = self._current, None
            tell = current is not None and not current.told and current.stopped
            if tell and current:
                current.told = True
        if tell and current:
            self._events.drained(current)
        self._events.broken(reason)

    def _open(self) -> Source:
        """The first way that can be had. Raises TransportError naming what was tried."""
        failures: list[str] = []
        for way in self._route.ways:
            try:
                source = self._knock(way)
            except (TransportError, OSError) as error:
                failures.append(f"{way.name}: {error}")
                continue
            if failures:
                _log.warning(
                    "KV goes over %s, as a better way cannot be had: %s", way.name, "; ".join(failures)
                )
            return source
        raise TransportError("no KV data connection can be had: " + "; ".join(failures))

    def _knock(self, way: Transport) -> Source:
        offer = self._route.offer
        with contextlib.ExitStack() as undo:
            sock = way.connect(offer.ways[way.name], self._limits.open_within)
            undo.callback(sock.close)
            sock.sendall(preface(offer.door, offer.secret))
            source = way.open(sock, self._pool, self._route.peer, offer.slots)
            undo.pop_all()
            return source


def _bundles(runs: list[Run], most_blocks: int) -> Iterator[list[Run]]:
    """Runs in portions that one put may hold."""
    bundle: list[Run] = []
    blocks = 0
    for run in runs:
        if bundle and (len(bundle) == MOST_RUNS or blocks + run.length > most_blocks):
            yield bundle
            bundle, blocks = [], 0
        bundle.append(run)
        blocks += run.length
    if bundle:
        yield bundle
