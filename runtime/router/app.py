"""The HTTP face of the router: the OpenAI endpoints, health, readiness and metrics."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from runtime import log
from runtime.errors import EngineFailure, Failure
from runtime.router.answer import Answer
from runtime.router.ask import Ask, check_context
from runtime.router.body import Body
from runtime.router.event_stream import EventStream
from runtime.router.http_server import Handle, Server, expect
from runtime.router.problems import Problem, body_of, headers_of, status_of
from runtime.router.router import Router
from runtime.router.shapes import Shape
from runtime.router.trace import log_fields

BODY_SECONDS = 60.0
READ_ON_SECONDS = 10.0
REQUEST_ID = "X-Request-Id"
TRACE = "X-Splitwise-Trace"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_ID = web.RequestKey("id", str)
_JSON = "application/json"
_EVENTS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
logger = log.logger("router")
Read = Callable[[bytes], Awaitable[Ask]]
_MODEL = "/v1/models/"


class App:
    """The endpoints over a router; `handle` answers any request, `refused` what is none."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._created = int(time.time())
        self._routes: dict[str, dict[str, Handle]] = {
            "/v1/completions": {"POST": self._completions},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/models": _get(self._models),
            "/healthz": _get(self._health),
            "/readyz": _get(self._ready),
            "/metrics": _get(self._metrics),
        }

    def server(self, idle_seconds: float = 75.0) -> Server:
        """To listen with; it belongs to the running loop."""
        limit = self._router.settings.max_body_bytes
        return Server(self.handle, refused, max_body_bytes=limit, idle_seconds=idle_seconds)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request has an id; every failure has the API's error shape."""
        given = request.headers.get(REQUEST_ID, "")
        request[_ID] = id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        try:
            await expect(request)
            response = await self._find(request)(request)
        except Failure as failure:
            response = _failed(failure)
        except Exception:
            logger.exception("a request broke the router", request=id)
            response = _failed(EngineFailure("the router failed to serve this request"))
        if not response.prepared:
            response.headers[REQUEST_ID] = id
        return response

    def _find(self, request: web.BaseRequest) -> Handle:
        """The handler of a method and path. Raises Problem."""
        methods = self._routes.get(request.path)
        if methods is None and request.path.startswith(_MODEL):
            methods = _get(self._model)
        if methods is None:
            raise Problem(f"{request.method} {request.path}: Not Found", status=404)
        if request.method not in methods:
            allow = ",".join(methods)
            raise Problem(f"{request.path} takes {allow}", status=405, headers={"Allow": allow})
        return methods[request.method]

    # ---- answers

    async def _completions(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._answer(request, "completion", self._router.reader.completion)

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._answer(request, "chat", self._router.reader.chat)

    async def _answer(self, request: web.BaseRequest, endpoint: str, read: Read) -> web.StreamResponse:
        router = self._router
        try:
            ask = await read(await _body(request))
            context = await router.context()
            check_context(ask, context)
        except Failure as failure:
            router.metrics.refused(endpoint, _outcome(failure))
            raise
        answer = router.answer(ask, request_id=request[_ID], context=context)
        shape = Shape(answer, router.tokenizer, traced=request.headers.get(TRACE) == "1")
        router.metrics.begun(answer)
        over = partial(self._over, answer)
        try:
            response = await (_stream if ask.stream else _whole)(request, answer, shape, router)
        except BaseException as error:
            goes_on = router.settings.client_disconnect == "finish" and _left(error)
            if not (goes_on and answer.go_on(over)):
                over(_outcome(error) if isinstance(error, Failure) else "cancelled")
            raise
        over(_outcome(answer.failure))
        return response

    def _over(self, answer: Answer, outcome: str = "cancelled") -> None:
        answer.close()
        now = time.monotonic()
        self._router.metrics.ended(answer, outcome=outcome, now=now)
        logger.info("request", **log_fields(answer, outcome=outcome, now=now))

    # ---- the rest

    async def _models(self, request: web.BaseRequest) -> web.Response:
        return _json({"object": "list", "data": [self._model_object()]})

    async def _model(self, request: web.BaseRequest) -> web.Response:
        name = request.path.removeprefix(_MODEL)
        if name != self._router.settings.model.name:
            raise Problem(
                f"the model {name!r} does not exist", param="model", reason="model_not_found", status=404
            )
        return _json(self._model_object())

    def _model_object(self) -> dict[str, object]:
        name = self._router.settings.model.name
        return {"id": name, "object": "model", "created": self._created, "owned_by": "splitwise"}

    async def _health(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, request: web.BaseRequest) -> web.Response:
        missing = self._router.desk.missing()
        return (
            web.Response(text="ready\n") if missing is None else web.Response(text=f"{missing}\n", status=503)
        )

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        body = generate_latest(self._router.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _stream(
    request: web.BaseRequest, answer: Answer, shape: Shape, router: Router
) -> web.StreamResponse:
    stream = EventStream(shape)
    answer.begin(stream, router.metrics)
    if not await stream.begun() and answer.failure is not None:
        raise answer.failure
    try:
        async with asyncio.timeout(answer.seconds_left() + READ_ON_SECONDS):
            return await stream.run(request, {**_EVENTS, REQUEST_ID: answer.request_id})
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError from None


async def _whole(
    request: web.BaseRequest, answer: Answer, shape: Shape, router: Router
) -> web.StreamResponse:
    body = Body(answer, shape)
    answer.begin(body, router.metrics)
    return web.Response(body=await body.complete(), content_type=_JSON)


async def _body(request: web.BaseRequest) -> bytes:
    try:
        if request.content.is_eof():  # it came with its head: no need of a timer
            return await request.read()
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise Problem(f"the body did not arrive within {BODY_SECONDS:g} s", status=408) from None
    except web.HTTPRequestEntityTooLarge:
        raise Problem(f"the body is larger than {request.client_max_size} bytes", status=413) from None
    except web.RequestPayloadError:
        raise Problem("the body cannot be read: it is not what its encoding headers say") from None


def _get(handle: Handle) -> dict[str, Handle]:
    return {"GET": handle, "HEAD": handle}


def _left(error: BaseException) -> bool:
    """Whether it means that the client has gone."""
    return isinstance(error, asyncio.CancelledError | ConnectionError)


def _outcome(failure: Failure | None) -> str:
    return "ok" if failure is None else failure.code


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=_JSON)


def refused(problem: Problem) -> web.Response:
    """The answer to what HTTP's parser refused."""
    response = _failed(problem)
    response.headers[REQUEST_ID] = secrets.token_hex(16)
    return response


def _failed(failure: Failure) -> web.Response:
    return web.Response(
        body=body_of(failure), status=status_of(failure), headers=headers_of(failure), content_type=_JSON
    )
