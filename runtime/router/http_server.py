"""aiohttp's plain server, with answers of our own to what its parser refuses."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError, InvalidURLError, LineTooLong

from runtime.router.problems import Problem

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[Problem], web.Response]
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Server(web.Server):
    """`handle` must answer, whatever it is asked; `refuse` makes the answer to what is no request at all.

    A client that is gone cancels its handler. So does one that only closes its sending side: the two look the
    same until something is written, and a leaver should stop costing at once.
    """

    def __init__(self, handle: Handle, refuse: Refuse, *, max_body_bytes: int, idle_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        request = partial(web.BaseRequest, loop=loop, client_max_size=max_body_bytes)
        super().__init__(handle, request_factory=request, handler_cancellation=True)
        self.refuse = refuse
        # the time is also what a client has to send its headers
        self._options = {"loop": loop, "access_log": None, "keepalive_timeout": idle_seconds}

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, **self._options)


class _Connection(web.RequestHandler):
    __slots__ = ("_refuse",)

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._refuse = server.refuse

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what the parser refused; the connection ends with it."""
        if request.writer.output_size:
            raise ConnectionError("an answer has begun; another cannot follow")
        response = self._refuse(_problem(exc))
        response.force_close()
        return response


def _problem(error: BaseException | None) -> Problem:
    if isinstance(error, LineTooLong):
        return Problem(f"a line of the request's head is longer than {error.args[1]} bytes", status=431)
    if isinstance(error, InvalidURLError):
        return Problem("this is not a valid HTTP request: its URL cannot be read")
    why = error.message.partition("\n")[0].rstrip(" :") if isinstance(error, HttpProcessingError) else ""
    return Problem(f"this is not a valid HTTP request: {why or 'it cannot be read'}")


async def expect(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to send its body. Raises Problem for other expectations."""
    expectation = request.headers.get("Expect")
    if expectation is None:
        return
    if expectation.lower() != "100-continue":
        raise Problem(f"Expect: {expectation}: only 100-continue is known", status=417)
    if request.version >= HttpVersion11:
        await request.writer.write(_CONTINUE)
        request.writer.output_size = 0  # the answer has not begun
