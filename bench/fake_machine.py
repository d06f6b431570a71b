"""A machine without an engine, as fast as the link allows: for measuring what stands in front of it.

Prompt legs answer at once. Token and whole legs get one token each at every beat; all tokens of a beat
leave in one frame, as those of an engine step do. A request's `seed` says how many milliseconds a beat is:
0 answers everything at once, QUIET never says a word.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from runtime.link import Connection, Handler, Hello, Listener, host_id, listen
from runtime.policy.work import Role
from runtime.wire import Cancel, Event, Load, MachineInfo, RouterMessage, Start, Step, Token

QUIET = 10**6
_LOAD = Load()


class FakeMachine:
    """`on_cancel` hears when a leg's cancellation arrives."""

    def __init__(self, name: str, role: Role, token: int) -> None:
        self.name = name
        self.on_cancel: Callable[[], None] = lambda: None
        self._token = (Token(token),)
        self._info = MachineInfo(role, "1", "bench", 8192, 1 << 20, 16, 1 << 20)
        self._beats: dict[int, dict[tuple[Connection, int], list[int]]] = {}
        self._loop = asyncio.get_running_loop()

    async def listen(self, address: str, secret: bytes) -> Listener:
        return await listen(address, hello=self._hello, secret=secret, accept=self._accept)

    def received(self, connection: Connection, message: Any) -> None:
        if isinstance(message, Start):
            self._start(connection, message)
        elif isinstance(message, Cancel):
            for streams in self._beats.values():
                streams.pop((connection, message.stream), None)
            self.on_cancel()

    def closed(self, connection: Connection, reason: str) -> None:
        for streams in self._beats.values():
            for key in [key for key in streams if key[0] is connection]:
                del streams[key]

    def _start(self, connection: Connection, start: Start) -> None:
        index, last = len(start.generated), start.sampling.max_tokens
        beat = start.sampling.seed
        if start.phase == "prompt":
            if beat != QUIET:
                connection.send(Step([Event(start.stream, index, self._token, "handoff")], _LOAD))
            return
        index += start.phase == "token"
        if beat == 0:
            rest = self._token * (last - index)
            connection.send(Step([Event(start.stream, index, rest, "length")], _LOAD))
        elif beat != QUIET:
            streams = self._beats.setdefault(beat, {})
            if not streams:
                self._schedule(beat)
            streams[connection, start.stream] = [index, last]

    def _schedule(self, beat: int) -> None:
        """Beats lie on multiples of CLOCK_MONOTONIC, so that whoever sees a token knows when it left."""
        period = beat / 1000
        self._loop.call_later(period - time.monotonic() % period, self._step, beat)

    def _step(self, beat: int) -> None:
        steps: dict[Connection, list[Event]] = {}
        streams = self._beats[beat]
        for (connection, stream), state in tuple(streams.items()):
            index, last = state
            ends = index + 1 == last
            steps.setdefault(connection, []).append(
                Event(stream, index, self._token, "length" if ends else None)
            )
            state[0] += 1
            if ends:
                del streams[connection, stream]
        for connection, events in steps.items():
            connection.send(Step(events, _LOAD))
        if streams:
            self._schedule(beat)

    def _hello(self, caller: Hello) -> Hello:
        body = Raw(msgspec.msgpack.encode(self._info))
        return Hello("machine", self.name, secrets.token_hex(8), host_id(), body)

    def _accept(self, caller: Hello) -> tuple[Any, Callable[[Connection], Handler]]:
        return RouterMessage, lambda connection: self
