"""A machine for router tests: the real link and wire, no engine.

    async with FakeMachine(folder, "prompt-0", "prompt") as machine:
        leg = await machine.leg()              # the next leg that the router opens here
        leg.send(5, end="handoff")             # tokens, an end
        leg.fail("engine_failure", "broken")   # or an error
        await leg.cancelled.wait()

With `plays` set, every leg is served by itself: output index n is `plays(n)`, an end token stops.
"""

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Raw

from runtime.link import Connection, Handler, Hello, Listener, Pulse, host_id, listen
from runtime.policy.work import Role
from runtime.wire import (
    Cancel,
    Credit,
    End,
    Event,
    Load,
    MachineInfo,
    RouterMessage,
    Start,
    Step,
    Token,
    Transfer,
)

SECRET = b"a secret that only tests know, 32 bytes"
SECONDS = 30.0


def write_secret(folder: Path) -> Path:
    file = folder / "secret"
    file.write_bytes(SECRET)
    return file


@dataclass(eq=False)
class FakeLeg:
    """One stream, driven by the test. `credit` is what the router still allows."""

    start: Start
    connection: Connection
    credit: int
    index: int
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    credited: asyncio.Event = field(default_factory=asyncio.Event)

    async def room(self) -> None:
        """Until there is credit for a token."""
        async with asyncio.timeout(SECONDS):
            while self.credit < 1:
                self.credited.clear()
                await self.credited.wait()

    def send(self, *ids: int, end: End | None = None, transfer: Transfer | None = None) -> None:
        """Tokens by id, with made-up logprobs."""
        self.tell(tuple(token(id, self.start.sampling.logprobs) for id in ids), end=end, transfer=transfer)

    def tell(
        self, tokens: tuple[Token, ...] = (), *, end: End | None = None, transfer: Transfer | None = None
    ) -> None:
        event = Event(self.start.stream, self.index, tokens, end, None, transfer)
        self.index += len(tokens)
        self.credit -= len(tokens)
        self.connection.send(Step([event], Load()))

    def fail(self, code: str, message: str = "on purpose") -> None:
        event = Event(self.start.stream, self.index, (), "error", (code, message))
        self.connection.send(Step([event], Load()))


def token(id: int, alternatives: int = -1) -> Token:
    """A token whose logprob and alternatives are functions of its id."""
    if alternatives < 0:
        return Token(id)
    top = tuple((id + n, -0.5 - n) for n in range(alternatives))
    return Token(id, -0.5, top)


class FakeMachine:
    """`legs` are all that were ever opened; `lose` ends every connection, `start` listens again."""

    def __init__(
        self,
        folder: Path,
        name: str,
        role: Role,
        *,
        revision: str = "1",
        model: str = "tiny",
        context_tokens: int = 8192,
        vocabulary: int = 100_000,
        kv_blocks: int = 1024,
        plays: Callable[[int], int] | None = None,
        end_token: int = -1,
    ) -> None:
        self.name = name
        self.address = f"unix:{folder}/{name}.sock"
        self.plays = plays
        self.end_token = end_token
        self.legs: list[FakeLeg] = []
        self.load = Load()
        self._info = MachineInfo(role, revision, model, context_tokens, vocabulary, 16, kv_blocks)
        self._new: asyncio.Queue[FakeLeg] = asyncio.Queue()
        self._connections: set[Connection] = set()
        self._players: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.lose()

    async def start(self) -> None:
        self._listener = await listen(
            self.address, hello=self._hello, secret=SECRET, accept=self._accept, pulse=Pulse(0.5, 5.0)
        )

    async def lose(self) -> None:
        """Gone, as if the process had died."""
        for player in self._players:
            player.cancel()
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    async def leg(self) -> FakeLeg:
        """The next leg that is opened here."""
        async with asyncio.timeout(SECONDS):
            return await self._new.get()

    @property
    def is_listening(self) -> bool:
        return self._listener is not None

    @property
    def is_connected(self) -> bool:
        return bool(self._connections)

    def report(self, load: Load) -> None:
        """Tell every router of a load, now."""
        for connection in self._connections:
            connection.send(Step([], load))

    # ---- the link's side

    def _hello(self, caller: Hello) -> Hello:
        body = Raw(msgspec.msgpack.encode(self._info))
        return Hello("machine", self.name, secrets.token_hex(8), host_id(), body)

    def _accept(self, caller: Hello) -> tuple[Any, Callable[[Connection], Handler]]:
        def made(connection: Connection) -> Handler:
            self._connections.add(connection)
            return self

        return RouterMessage, made

    def received(self, connection: Connection, message: Any) -> None:
        match message:
            case Start():
                self._begin(connection, message)
            case Cancel(stream=stream):
                self._of(stream).cancelled.set()
            case Credit(stream=stream, tokens=tokens):
                leg = self._of(stream)
                leg.credit += tokens
                leg.credited.set()

    def closed(self, connection: Connection, reason: str) -> None:
        self._connections.discard(connection)

    def _of(self, stream: int) -> FakeLeg:
        return next(leg for leg in reversed(self.legs) if leg.start.stream == stream)

    def _begin(self, connection: Connection, start: Start) -> None:
        leg = FakeLeg(start, connection, start.credit, len(start.generated) + (start.phase == "token"))
        self.legs.append(leg)
        self._new.put_nowait(leg)
        if self.plays is not None:
            player = asyncio.get_running_loop().create_task(self._play(leg, self.plays))
            self._players.add(player)
            player.add_done_callback(self._players.discard)

    async def _play(self, leg: FakeLeg, plays: Callable[[int], int]) -> None:
        """As an engine would: within credit, up to max_tokens or the end token."""
        sampling, phase = leg.start.sampling, leg.start.phase
        if phase == "token" and not _goes_on(leg, plays, self.end_token):
            return
        for index in itertools.count(leg.index):
            await leg.room()
            id = plays(index)
            stopped = id == self.end_token or id in sampling.stop_token_ids
            end: End | None = "stop" if stopped else "length" if index + 1 >= sampling.max_tokens else None
            if end is None and phase == "prompt":
                end = "handoff"
            leg.send(id, end=end)
            await asyncio.sleep(0)
            if end is not None or leg.cancelled.is_set():
                return


def _goes_on(leg: FakeLeg, plays: Callable[[int], int], end_token: int) -> bool:
    """Whether there is anything left for the token leg behind the first token."""
    first = len(leg.start.generated)
    return plays(first) != end_token and first + 1 < leg.start.sampling.max_tokens
