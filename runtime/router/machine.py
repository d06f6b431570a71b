"""A machine as the router sees it: its connection, what it is, and the legs that run on it."""

import asyncio
from typing import Any, Protocol

from runtime import log
from runtime.errors import EngineFailure, Failure, MachineLost
from runtime.link import Connection
from runtime.wire import Cancel, Credit, Event, Load, MachineInfo, Start, Step

_UNKNOWN = MachineInfo("mixed", "", "", 0, 0, 0, 0)
logger = log.logger("fleet")


class Unfit(Exception):
    """The machine answers but must not be used; the message says why."""


class Leg(Protocol):
    """Whoever opened a stream on a machine."""

    def event(self, event: Event) -> None:
        """News of the stream, in order. After an event with an end there is no more."""

    def broke(self, failure: Failure) -> None:
        """The stream is over without an end."""


class Machine:
    """Also the handler of its connection (runtime.link.Handler). One connection at a time."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.info = _UNKNOWN
        self.load = Load()
        self._connection: Connection | None = None
        self._legs: dict[int, Leg] = {}
        self._streams = 0
        self._retired = False
        self._lost: asyncio.Future[str] | None = None

    @property
    def usable(self) -> bool:
        """Whether it may be given new work."""
        return self._connection is not None and not self._retired and not self.load.draining

    @property
    def role(self) -> str:
        """Its role, or "unknown" before the first connection."""
        return self.info.role if self.info.model else "unknown"

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def legs(self) -> int:
        return len(self._legs)

    @property
    def kv_tokens(self) -> int:
        """How many tokens' KV it can hold."""
        return self.info.kv_blocks * self.info.kv_block_tokens

    # ---- streams

    def new_stream(self) -> int:
        """A number for a stream, never used before on this machine."""
        self._streams += 1
        return self._streams

    def open(self, leg: Leg, start: Start) -> None:
        """Begin a leg. On a machine that has just been lost it breaks at once, in the next tick."""
        if self._connection is None or self._connection.is_closed:
            lost = MachineLost(f"machine {self.name} is not connected")
            asyncio.get_running_loop().call_soon(leg.broke, lost)
            return
        self._legs[start.stream] = leg
        self._connection.send(start)

    def cancel(self, stream: int) -> None:
        """End a leg from our side; nothing more is heard of it."""
        if self._legs.pop(stream, None) is not None and self._connection is not None:
            self._connection.send(Cancel(stream))
            self._maybe_leave()

    def credit(self, stream: int, tokens: int) -> None:
        """The client has read on."""
        if stream in self._legs and self._connection is not None:
            self._connection.send(Credit(stream, tokens))

    # ---- the connection

    def connected(self, connection: Connection, info: MachineInfo) -> None:
        """A usable connection is there."""
        self._connection, self.info, self.load = connection, info, Load()
        self._lost = asyncio.get_running_loop().create_future()
        if connection.is_closed:
            self.closed(connection, "closed at once")

    async def lost(self) -> str:
        """Wait for the end of the connection; says why."""
        assert self._lost is not None
        return await asyncio.shield(self._lost)

    def disconnect(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close(reason)

    def retire(self) -> None:
        """No new work; disconnect as soon as nothing runs."""
        self._retired = True
        self._maybe_leave()

    def received(self, connection: Connection, message: Any) -> None:
        assert isinstance(message, Step)
        self.load = message.load
        for event in message.events:
            leg = self._legs.get(event.stream)
            if leg is None:  # cancelled while this was under way
                continue
            if event.end is not None:
                del self._legs[event.stream]
            try:
                leg.event(event)
            except Exception:  # one request's trouble must not end the connection that all share
                logger.exception("a leg could not take its news", machine=self.name)
                self.cancel(event.stream)
                self._break(leg, EngineFailure("the router failed to read the answer"))
        self._maybe_leave()

    def closed(self, connection: Connection, reason: str) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        legs, self._legs = self._legs, {}
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)
        for leg in legs.values():
            self._break(leg, MachineLost(f"machine {self.name} was lost: {reason}"))

    def _break(self, leg: Leg, failure: Failure) -> None:
        try:
            leg.broke(failure)
        except Exception:
            logger.exception("a leg could not be broken", machine=self.name)

    def _maybe_leave(self) -> None:
        if self._retired and not self._legs:
            self.disconnect("no longer among the router's machines")
