"""Connections from routers: streams begin, get credit, are cancelled, and all end with the connection."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from runtime.errors import Cancelled, DeadlineExceeded, Failure, InvalidRequest
from runtime.link import Connection
from runtime.stream import Outbox, Stream
from runtime.wire import Cancel, Credit, Load, RouterMessage, Start


class Phases(Protocol):
    """Where legs go."""

    def begin(self, stream: Stream, deadline: float) -> None:
        """Raises a Failure if the leg cannot be taken at all."""

    def stop(self, stream: Stream, why: Failure) -> None:
        """End a leg early; unknown or ended ones are ignored."""


class RouterConnection:
    """Handler of one router's connection."""

    inbound = RouterMessage

    def __init__(
        self,
        connection: Connection,
        phases: Phases,
        on_closed: Callable[["RouterConnection"], None] = lambda router: None,
    ) -> None:
        self.outbox = Outbox(connection)
        self._phases = phases
        self._on_closed = on_closed
        self._streams: dict[int, tuple[Stream, asyncio.TimerHandle]] = {}
        self._loop = asyncio.get_running_loop()

    def received(self, connection: Connection, message: Any) -> None:
        match message:
            case Start():
                self._start(message)
            case Cancel(stream=number):
                self._end(number, Cancelled("cancelled by the router"))
            case Credit(stream=number, tokens=tokens):
                if number in self._streams:
                    self._streams[number][0].credit(tokens)

    def closed(self, connection: Connection, reason: str) -> None:
        for number in tuple(self._streams):
            self._end(number, Cancelled(f"the router is gone: {reason}"))
        self._on_closed(self)

    def report(self, load: Load) -> None:
        """A step is over: pass the load on."""
        self.outbox.report(load)

    def _start(self, start: Start) -> None:
        stream = Stream(self.outbox, start)
        if start.stream in self._streams:
            stream.fail(InvalidRequest(f"stream {start.stream} is in use"))
            return
        late = DeadlineExceeded(f"not done within the {start.deadline_s:.3g} s that were left")
        timer = self._loop.call_later(start.deadline_s, self._end, start.stream, late)
        self._streams[start.stream] = (stream, timer)
        stream.on_end = lambda: self._forget(start.stream)
        try:
            self._phases.begin(stream, time.monotonic() + start.deadline_s)
        except Failure as failure:
            stream.fail(failure)

    def _end(self, number: int, why: Failure) -> None:
        if number not in self._streams:
            return
        stream, _ = self._streams[number]
        self._phases.stop(stream, why)
        if isinstance(why, Cancelled):
            stream.silence()
        else:
            stream.fail(why)

    def _forget(self, number: int) -> None:
        _, timer = self._streams.pop(number)
        timer.cancel()
