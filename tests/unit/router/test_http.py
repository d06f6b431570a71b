"""The HTTP face: error shapes, limits, ids, health, models, metrics and log lines."""

import asyncio
import json
import logging
from typing import Any

import pytest

from fake_machine import FakeMachine
from front import Serve, play
from runtime.router.app import REQUEST_ID
from runtime.router.metrics import GAUGES, TABLE, TBT
from runtime.tokenizer import Tokenizer
from runtime.wire import Transfer

Pair = tuple[FakeMachine, FakeMachine]


# ---- errors


async def test_errors_have_the_apis_shape(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        reply = await front.complete({"temperature": 9})
        assert (reply.status, reply.headers["Content-Type"]) == (400, "application/json")
        assert reply.json == {
            "error": {
                "message": "temperature must be a number from 0 to 2",
                "type": "invalid_request_error",
                "param": "temperature",
                "code": "invalid_value",
            }
        }


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", b"{", 400),
        ("/v1/completions", b'{"model": "other", "prompt": "x"}', 404),
        ("/v1/chat/completions", b'{"model": "tiny", "messages": [{"role": "user", "content": 5}]}', 400),
        ("/v1/embeddings", b"{}", 404),
        ("/v1/models", b"{}", 405),
    ],
)
async def test_every_error_is_a_json_error(
    serve: Serve, pair: Pair, path: str, body: bytes, status: int
) -> None:
    async with serve(pair) as front:
        reply = await front.post(path, body)
        assert reply.status == status
        assert reply.error["type"] == "invalid_request_error"
        assert set(reply.error) == {"message", "type", "param", "code"}
        assert reply.headers[REQUEST_ID]


POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nZZ\r\n\r\n", 400, "chunk size"),
        (POST + b"Content-Length: -1\r\n\r\n", 400, "Content-Length"),
        (POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 400, "encoding headers"),
        (POST + b"Expect: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", 417, "100-continue"),
        (GET + b"X: " + b"y" * 9000 + b"\r\n\r\n", 431, "8190 bytes"),
        (GET + b"two words: x\r\n\r\n", 400, "header"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"GET http://[a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "URL"),
        (b"FOO /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 400, "method"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400, "HTTPS"),
    ],
)
async def test_what_is_not_http_is_a_json_error_too(
    serve: Serve, sent: bytes, status: int, words: str
) -> None:
    async with serve(()) as front:
        head, body = await front.exchange(sent)
        error = json.loads(body)["error"]
        assert head.split()[1] == str(status)
        assert f"{REQUEST_ID}: " in head
        assert error["type"] == "invalid_request_error"
        assert words in error["message"]


async def test_a_client_is_told_to_send_its_body(serve: Serve) -> None:
    asks = POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    async with serve(()) as front:
        head, rest = await front.exchange(asks)
        assert head == "HTTP/1.1 100 Continue"
        assert rest.startswith("HTTP/1.1 400")
        assert "model" in rest


async def test_a_method_that_does_not_fit_is_told_which_does(serve: Serve) -> None:
    async with serve(()) as front:
        reply = await front.post("/v1/models", b"{}")
        assert (reply.status, reply.headers["Allow"]) == (405, "GET,HEAD")


async def test_a_body_over_the_limit_is_refused_with_the_limit(serve: Serve, pair: Pair) -> None:
    async with serve(pair, max_body_bytes=1000) as front:
        fits = await front.complete({"prompt": "", "user": "x" * 800})
        assert (fits.status, fits.error["param"]) == (400, "prompt")
        reply = await front.complete({"user": "x" * 1000})
        assert reply.status == 413
        assert "1000 bytes" in reply.error["message"]


async def test_a_prompt_over_the_context_is_refused_with_the_numbers(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        reply = await front.complete({"prompt": [5] * 8000, "max_tokens": 193})
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert "8192 tokens; 8000 prompt tokens and 193 more" in reply.error["message"]


async def test_a_mistake_of_our_own_is_a_500_without_details(
    serve: Serve, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(pair) as front:
        monkeypatch.setattr(front.router, "answer", lambda *given, **named: 1 / 0)
        reply = await front.complete({})
        assert (reply.status, reply.error["type"]) == (500, "server_error")
        assert "zero" not in reply.error["message"]


# ---- ids


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_id_travels_to_the_machines_and_back(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, stream: bool
) -> None:
    play(pair, tokenizer.encode("ab", special=False))
    async with serve(pair) as front:
        reply = await front.complete({"max_tokens": 2, "stream": stream}, {REQUEST_ID: "client-1"})
        assert reply.headers[REQUEST_ID] == "client-1"
        assert [leg.start.request for machine in pair for leg in machine.legs] == ["client-1"] * 2


@pytest.mark.parametrize("given", ["", "x" * 129, "two words", "tab\there", "é"])
async def test_an_unfit_request_id_is_replaced(serve: Serve, pair: Pair, given: str) -> None:
    async with serve(pair) as front:
        reply = await front.complete({"n": 0}, {REQUEST_ID: given})
        assert reply.headers[REQUEST_ID] != given
        assert len(reply.headers[REQUEST_ID]) == 32


async def test_equal_ids_of_two_clients_never_mix_their_transfers(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        answers = [asyncio.create_task(front.complete({}, {REQUEST_ID: "same"})) for _ in range(2)]
        legs = [await pair[0].leg() for _ in answers]
        assert legs[0].start.transfer != legs[1].start.transfer
        for leg in legs:
            leg.send(5, end="stop")
        assert [(await answer).status for answer in answers] == [200, 200]


# ---- the rest


async def test_models(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        (model,) = (await front.get("/v1/models")).json["data"]
        assert (model["id"], model["object"]) == ("tiny", "model")
        assert (await front.get("/v1/models/tiny")).json == model
        reply = await front.get("/v1/models/other")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


@pytest.mark.fault("SPLIT-4")
async def test_ready_follows_the_routes_and_health_does_not(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        assert (await front.get("/readyz")).status == 200
        await pair[0].lose()
        await front.connected(1)
        reply = await front.get("/readyz")
        assert (reply.status, reply.raw) == (503, b"the prompt pool is empty\n")
        assert (await front.get("/healthz")).status == 200
        await pair[0].start()
        await front.connected(2)
        assert (await front.get("/readyz")).status == 200


@pytest.mark.fault("INSTALL-6")
async def test_metrics_tell_what_happened(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"prompt": [5] * 7, "max_tokens": 3}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        assert await front.metric("splitwise_streams_open") == 1
        assert await front.metric('splitwise_machine_legs{machine="token-0"}') == 1
        prompt.send(5, end="handoff")
        token.tell(transfer=Transfer("layerwise", "shm", 1024, 0.004, 0.001))
        token.send(5)
        token.send(5, end="length")
        await answer
        labels = '{mode="layerwise",transport="shm"}'
        for series, value in {
            'splitwise_requests_total{endpoint="completion",outcome="ok"}': 1,
            "splitwise_ttft_seconds_count": 1,
            "splitwise_tbt_seconds_count": 2,
            "splitwise_e2e_seconds_count": 1,
            "splitwise_route_wait_seconds_count": 1,
            "splitwise_prompt_tokens_total": 7,
            "splitwise_output_tokens_total": 3,
            'splitwise_routes_total{mode="split"}': 1,
            'splitwise_routes_total{mode="whole"}': 0,
            f"splitwise_kv_bytes_total{labels}": 1024,
            f"splitwise_kv_seconds_sum{labels}": 0.004,
            f"splitwise_kv_visible_seconds_sum{labels}": 0.001,
            'splitwise_machines{role="prompt",state="known"}': 1,
            'splitwise_machines{role="prompt",state="ready"}': 1,
            "splitwise_streams_open": 0,
        }.items():
            assert await front.metric(series) == value, series


async def test_every_metric_of_the_table_is_shown(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        shown = (await front.get("/metrics")).raw.decode()
        for row in (*TABLE, TBT, *GAUGES):
            assert f"# HELP {row.name}" in shown


async def test_unknown_visible_time_is_not_counted_as_time(serve: Serve, pair: Pair) -> None:
    async with serve(pair) as front:
        answer = asyncio.create_task(front.complete({"max_tokens": 2}))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        prompt.send(5, end="handoff")
        token.tell(transfer=Transfer("serialized", "tcp", 10, 0.5, -1))
        token.send(5, end="length")
        await answer
        labels = '{mode="serialized",transport="tcp"}'
        assert await front.metric(f"splitwise_kv_seconds_count{labels}") == 1
        assert await front.metric(f"splitwise_kv_visible_seconds_count{labels}") == 0


async def test_one_log_line_a_request_without_any_text(
    serve: Serve, pair: Pair, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="splitwise.router")
    play(pair, tokenizer.encode("answering", special=False))
    async with serve(pair) as front:
        await front.complete(
            {"prompt": "questioning", "max_tokens": 3, "user": "someone"}, {REQUEST_ID: "r-1"}
        )
        (record,) = [one for one in caplog.records if one.getMessage() == "request"]
        fields: dict[str, Any] = record.__dict__["splitwise_fields"]
        assert fields["request"] == "r-1"
        assert (fields["outcome"], fields["output_tokens"], fields["restarts"]) == ("ok", 3, 0)
        assert fields["choices"][0]["prompt_machine"] == "prompt-0"
        assert 0 < fields["ttft_seconds"] <= fields["e2e_seconds"]
        assert 0 < fields["tbt_seconds"] <= fields["e2e_seconds"]
        assert not any(word in str(fields) for word in ("question", "answer", "someone"))
