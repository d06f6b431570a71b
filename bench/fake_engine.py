"""An OpenAI server without an engine, for a router that speaks HTTP to its machines.

Answers as bench.fake_machine does: a request's `seed` is its beat in milliseconds, and every running stream
gets one chunk, in one write of its own, at every beat.
"""

import asyncio
import json
import time
from typing import Any

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n\r\n"
_CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef01234567","object":"text_completion","created":1700000000,'
    b'"model":"bench","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}\n\n'
)  # fmt: skip
_WHOLE = json.dumps(
    {
        "id": "cmpl-0123456789abcdef01234567",
        "object": "text_completion",
        "created": 1700000000,
        "model": "bench",
        "choices": [{"index": 0, "text": " token" * 8, "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28},
    }
).encode()


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_BEAT = _framed(_CHUNK)
_LAST = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class FakeEngine(asyncio.Protocol):
    """One connection; requests come one after another, each with a Content-Length."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if found and len(body) >= length:
            self._buffer = b""
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"POST"):
            self._transport.write(_HEAD % (b"text/plain", b"Content-Length: 0"))
            return
        asked = json.loads(body)
        if not asked.get("stream"):
            self._transport.write(_HEAD % (b"application/json", b"Content-Length: %d" % len(_WHOLE)) + _WHOLE)
            return
        self._transport.write(_HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked"))
        Beats.of(asked["seed"]).streams[self._transport] = asked["max_tokens"]


class Beats:
    """All streams of one period, in milliseconds."""

    _all: dict[int, "Beats"] = {}  # noqa: RUF012 - one process, one set of beats

    def __init__(self, beat: int) -> None:
        self.streams: dict[Any, int] = {}
        self._period = beat / 1000
        self._schedule()

    @classmethod
    def of(cls, beat: int) -> "Beats":
        return cls._all.setdefault(beat, cls._all.get(beat) or cls(beat))

    def _schedule(self) -> None:
        wait = self._period - time.monotonic() % self._period
        asyncio.get_running_loop().call_later(wait, self._step)

    def _step(self) -> None:
        for transport, left in tuple(self.streams.items()):
            transport.write(_BEAT if left > 1 else _BEAT + _LAST)
            self.streams[transport] = left - 1
            if left <= 1 or transport.is_closing():
                del self.streams[transport]
        self._schedule()


async def serve() -> tuple[asyncio.Server, int]:
    """Listen on a free port."""
    server = await asyncio.get_running_loop().create_server(FakeEngine, "127.0.0.1", 0)
    return server, int(server.sockets[0].getsockname()[1])
