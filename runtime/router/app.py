"""The HTTP face of the router: the OpenAI endpoints, health, readiness and metrics."""

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from runtime import log
from runtime.errors import EngineFailure, Failure
from runtime.router.answer import Answer
from runtime.router.ask import Ask, check_context
from runtime.router.body import Body
from runtime.router.event_stream import EventStream
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


class App:
    """Handlers over a router; `application` is what aiohttp serves."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._created = int(time.time())
        self.application = web.Application(
            client_max_size=router.settings.max_body_bytes, middlewares=[_tell_failures]
        )
        self.application.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{name:.+}", self._model),
                web.get("/healthz", self._health),
                web.get("/readyz", self._ready),
                web.get("/metrics", self._metrics),
            ]
        )

    # ---- answers

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "completion", self._router.reader.completion)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "chat", self._router.reader.chat)

    async def _answer(self, request: web.Request, endpoint: str, read: Read) -> web.StreamResponse:
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
        outcome = "cancelled"
        try:
            response = await (_stream if ask.stream else _whole)(request, answer, shape, router)
            outcome = _outcome(answer.failure)
            return response
        except Failure as failure:
            outcome = _outcome(failure)
            raise
        finally:
            answer.close()
            now = time.monotonic()
            router.metrics.ended(answer, outcome=outcome, now=now)
            logger.info("request", **log_fields(answer, outcome=outcome, now=now))

    # ---- the rest

    async def _models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._model_object()]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name != self._router.settings.model.name:
            raise Problem(
                f"the model {name!r} does not exist", param="model", reason="model_not_found", status=404
            )
        return _json(self._model_object())

    def _model_object(self) -> dict[str, object]:
        name = self._router.settings.model.name
        return {"id": name, "object": "model", "created": self._created, "owned_by": "splitwise"}

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, request: web.Request) -> web.Response:
        missing = self._router.desk.missing()
        return (
            web.Response(text="ready\n") if missing is None else web.Response(text=f"{missing}\n", status=503)
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._router.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _stream(request: web.Request, answer: Answer, shape: Shape, router: Router) -> web.StreamResponse:
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


async def _whole(request: web.Request, answer: Answer, shape: Shape, router: Router) -> web.StreamResponse:
    body = Body(answer, shape)
    answer.begin(body, router.metrics)
    return web.Response(body=await body.complete(), content_type=_JSON)


async def _body(request: web.Request) -> bytes:
    try:
        if request.content.is_eof():  # it came with its head: no need of a timer
            return await request.read()
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise Problem(f"the body did not arrive within {BODY_SECONDS:g} s", status=408) from None
    except web.RequestPayloadError:
        raise Problem("the body cannot be read: it is not what its encoding headers say") from None


def _outcome(failure: Failure | None) -> str:
    return "ok" if failure is None else failure.code


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=_JSON)


@web.middleware
async def _tell_failures(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every request has an id; every failure has the API's error shape."""
    given = request.headers.get(REQUEST_ID, "")
    request[_ID] = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
    try:
        response = await handler(request)
    except Failure as failure:
        response = _failed(failure)
    except web.HTTPException as error:
        response = _failed(_http_problem(request, error))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
    except Exception:
        logger.exception("a request broke the router", request=request[_ID])
        response = _failed(EngineFailure("the router failed to serve this request"))
    if not response.prepared:
        response.headers[REQUEST_ID] = request[_ID]
    return response


def _failed(failure: Failure) -> web.Response:
    return web.Response(
        body=body_of(failure), status=status_of(failure), headers=headers_of(failure), content_type=_JSON
    )


def _http_problem(request: web.Request, error: web.HTTPException) -> Problem:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        message = f"the body is larger than {request.client_max_size} bytes"
    else:
        message = f"{request.method} {request.path}: {error.reason}"
    return Problem(message, status=error.status)
