"""A leg's way back to its router: events within its credit, one frame per connection and engine step."""

import asyncio
from collections import deque
from collections.abc import Callable

from runtime.errors import Failure
from runtime.link import Connection
from runtime.wire import End, Event, Load, Start, Step, Token, Transfer


class Outbox:
    """What one router is told. Everything emitted within a tick leaves as one `Step`."""

    def __init__(self, connection: Connection) -> None:
        self.load = Load()
        self._connection = connection
        self._events: list[Event] = []
        self._loop = asyncio.get_running_loop()

    def put(self, event: Event) -> None:
        if not self._events:
            self._loop.call_soon(self._flush)
        self._events.append(event)

    def report(self, load: Load) -> None:
        """Remember the machine's load for the next frame, and send one now if nothing else is due."""
        changed, self.load = load != self.load, load
        if changed and not self._events:
            self._connection.send(Step([], load))

    def _flush(self) -> None:
        events, self._events = self._events, []
        self._connection.send(Step(events, self.load))


class Stream:
    """One leg's output. Tokens over the credit wait here, at most the request's max_tokens of them.

    Nothing is emitted after the end, whoever brings it about; `on_end` is called once when the last event
    has left. `leg` names the work behind the stream."""

    def __init__(self, outbox: Outbox, start: Start) -> None:
        self.start = start
        self.leg = ""
        self.ended = False
        self.on_end: Callable[[], None] = lambda: None
        self._outbox = outbox
        self._credit = start.credit
        self._held: deque[Event] = deque()
        self._index = len(start.generated) + (start.phase == "token")

    def emit(
        self, tokens: tuple[Token, ...] = (), *, end: End | None = None, transfer: Transfer | None = None
    ) -> None:
        """Tell the router of new tokens, the end, or how the KV-cache came."""
        if self.ended:
            return
        self.ended = end is not None
        self._held.append(Event(self.start.stream, self._index, tokens, end, None, transfer))
        self._index += len(tokens)
        self._release()

    def fail(self, failure: Failure) -> None:
        """End with an error; what still waits for credit is dropped."""
        if self.ended and not self._held:
            return
        self._outbox.put(Event(self.start.stream, self._index, (), "error", (failure.code, failure.message)))
        self.silence()

    def silence(self) -> None:
        """End without a word: the router has cancelled, or hears the end from the other leg."""
        if not self.ended or self._held:
            self.ended = True
            self._held.clear()
            self.on_end()

    def rewind(self) -> None:
        """The first token comes from this machine after all: the leg starts over as a whole one."""
        self._index = len(self.start.generated)

    def credit(self, tokens: int) -> None:
        """The router has room for more tokens."""
        self._credit += tokens
        self._release()

    def _release(self) -> None:
        while self._held and (self._credit > 0 or not self._held[0].tokens):
            event = self._held.popleft()
            self._credit -= len(event.tokens)
            self._outbox.put(event)
            if event.end is not None:
                self.on_end()
