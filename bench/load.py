"""A load client on raw sockets: it must cost less than what it measures."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence

END = b"[DONE]"


def request(path: str, body: object) -> bytes:
    """The bytes of a POST on a connection that is kept."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


class Client(asyncio.Protocol):
    """One connection. `on_event` hears the time of every arrival that holds events, and how many."""

    def __init__(self, on_event: Callable[[float, int], None] = lambda at, count: None) -> None:
        self.transport: asyncio.Transport | None = None
        self._on_event = on_event
        self._ended: asyncio.Future[None] | None = None
        self._whole = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        count = data.count(b"data: {")
        if count:
            self._on_event(time.monotonic(), count)
        self._tail = (self._tail + data)[-64:]
        if self._whole or END in self._tail:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ConnectionError("the router closed the connection"))

    def send(self, raw: bytes, *, whole: bool) -> "asyncio.Future[None]":
        """Done when the answer is: a `whole` one with its only piece, a stream with [DONE]."""
        assert self.transport is not None
        self._whole, self._tail = whole, b""
        self._ended = asyncio.get_running_loop().create_future()
        self.transport.write(raw)
        return self._ended

    def _finish(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


async def connect(port: int, client: Client) -> Client:
    await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
    return client


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


async def get(port: int, path: str) -> bytes:
    """Status line, headers and body of a GET on a connection of its own. Raises ConnectionError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


def hang_up(clients: Sequence[Client]) -> None:
    for client in clients:
        if client.transport is not None:
            client.transport.abort()
