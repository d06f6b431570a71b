"""A streamed answer on its way out: server-sent events, written from the very callback that brings a token.

No task wakes for a token: chunks go straight into the connection's transport, in HTTP/1.1 chunks of our own.
The request's task only waits for the end, or for a client that reads too slowly. Such a client's credit is
withheld, so no more than the credit and the socket's buffers ever wait for it.
"""

import asyncio
from collections.abc import Mapping

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol

from runtime.errors import Failure
from runtime.router.choice import Choice
from runtime.router.output import Piece
from runtime.router.problems import body_of
from runtime.router.shapes import Shape


class EventStream:
    """The runtime.router.answer.Sink of one streamed answer."""

    def __init__(self, shape: Shape) -> None:
        self.failure: Failure | None = None
        self._shape = shape
        self._protocol: BaseProtocol | None = None
        self._transport: asyncio.Transport | None = None
        self._chunked = True
        self._early: list[bytes] = []
        self._opened: set[int] = set()
        self._owed: dict[Choice, int] = {}
        self._over = False
        self._turn = asyncio.Event()

    async def begun(self) -> bool:
        """Wait for the first words, or for a failure before them (False: there is nothing to stream)."""
        await self._turn.wait()
        return bool(self._early)

    async def run(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        """Stream until the answer has ended and the client has it."""
        response = web.StreamResponse(headers=headers)
        writer = await response.prepare(request)
        assert writer is not None
        self._open(request, writer)
        while True:
            self._turn.clear()
            if self._is_paused():
                await writer.drain()
                self._repay()
            elif self._over:
                break
            else:
                await self._turn.wait()
        await response.write_eof()
        return response

    # ---- from the answer (runtime.router.answer.Sink)

    def wrote(self, choice: Choice, tokens: int, piece: Piece | None) -> None:
        if piece is not None or choice.finish is not None:
            if choice.index not in self._opened:
                self._opened.add(choice.index)
                self._put(self._shape.opening(choice))
            self._put(self._shape.chunk(choice, piece))
        if self._is_paused():
            self._owed[choice] = self._owed.get(choice, 0) + tokens
            self._turn.set()
        else:
            choice.read(tokens)

    def ended(self, failure: Failure | None) -> None:
        self.failure = failure
        self._over = True
        if failure is None:
            self._put(self._shape.closing())
        elif self._opened:
            self._put(b"data: " + body_of(failure) + b"\n\n")
        self._turn.set()

    # ---- bytes

    def _open(self, request: web.BaseRequest, writer: AbstractStreamWriter) -> None:
        self._protocol, self._transport = request.protocol, request.transport
        self._chunked = request.version >= HttpVersion11
        writer.send_headers()
        early, self._early = self._early, []
        self._put(b"".join(early))

    def _put(self, data: bytes) -> None:
        if not data:
            return
        if self._protocol is None:
            self._early.append(data)
            self._turn.set()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _is_paused(self) -> bool:
        return self._protocol is not None and self._protocol.writing_paused

    def _repay(self) -> None:
        owed, self._owed = self._owed, {}
        for choice, tokens in owed.items():
            choice.read(tokens)
