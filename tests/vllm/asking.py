"""What the tests ask of a fleet, and how they look at what its machines are doing and have left behind."""

import json
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fleet import Fleet

Body = dict[str, Any]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAMPLED: Body = {"temperature": 1.0, "seed": 11, "ignore_eos": True}


def ids(count: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(3, 384), k=count)


def completion(**more: Any) -> tuple[str, Body]:
    return COMPLETIONS, {"model": "tiny", "prompt": ids(40), "max_tokens": 17, "temperature": 0} | more


def chat(**more: Any) -> tuple[str, Body]:
    messages = [{"role": "user", "content": "What do the wind and the water do?"}]
    return CHAT, {"model": "tiny", "messages": messages, "max_tokens": 17, "temperature": 0} | more


def tokens(answer: Body) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["splitwise"]["choices"]]


def until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Look again and again until it is so; the deadline says what was waited for."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)


# ---- clients and machines that misbehave


def asked(fleet: Fleet, body: Body) -> socket.socket:
    """A streamed request; its client leaves when the socket is closed."""
    host, port = fleet.url.removeprefix("http://").split(":")
    data = json.dumps(body | {"stream": True}).encode()
    client = socket.create_connection((host, int(port)), timeout=30)
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return client


@contextmanager
def frozen(fleet: Fleet, name: str) -> Iterator[None]:
    """A machine that stands still: neither computes nor answers nor ends."""
    fleet.signal(name, signal.SIGSTOP)
    try:
        yield
    finally:
        fleet.signal(name, signal.SIGCONT)


@contextmanager
def router_with(fleet: Fleet, **settings: Any) -> Iterator[None]:
    """The same machines behind a router with other settings."""
    config = fleet.folder / "router.json"
    before = config.read_text()
    _restart_router(fleet, json.dumps(json.loads(before) | settings))
    try:
        yield
    finally:
        _restart_router(fleet, before)


def _restart_router(fleet: Fleet, settings: str) -> None:
    fleet.kill("router")
    (fleet.folder / "router.json").write_text(settings)
    fleet.start("router")
    alive = sum(fleet.processes[name].poll() is None for name in fleet.observe)
    until(lambda: _connected(fleet) == alive, "the router knows its machines")


def _connected(fleet: Fleet) -> float:
    try:
        series = fleet.metrics("router")
    except OSError:
        return -1
    ready = re.compile(r'splitwise_machines\{.*state="ready".*\}')
    return sum(value for name, value in series.items() if ready.fullmatch(name))


# ---- what machines hold


def kv_blocks(fleet: Fleet, name: str, state: str = "used") -> float:
    return fleet.metrics(name).get(f'splitwise_kv_blocks{{state="{state}"}}', 0)


def legs(fleet: Fleet, name: str) -> float:
    """Legs that the router has open on a machine."""
    return fleet.metrics("router").get(f'splitwise_machine_legs{{machine="{name}"}}', 0)


def told(fleet: Fleet) -> float:
    """Tokens that the router has had from machines so far, those of unfinished answers included."""
    series = fleet.metrics("router")
    return series["splitwise_ttft_seconds_count"] + series["splitwise_tbt_seconds_count"]


def until_busy(fleet: Fleet, kind: str) -> str:
    """The machine of a kind that computes something now."""
    names = [name for name in fleet.observe if name.startswith(kind) and fleet.processes[name].poll() is None]
    busy: list[str] = []

    def found() -> bool:
        busy.extend(name for name in names if kv_blocks(fleet, name))
        return bool(busy)

    until(found, f"a {kind} machine is busy")
    return busy[0]


def expect_nothing_held(fleet: Fleet) -> None:
    """Soon no living machine uses a block, or keeps one from a writer that may still be there."""

    def held() -> dict[str, float]:
        alive = [name for name in fleet.observe if fleet.processes[name].poll() is None]
        return {name: kv_blocks(fleet, name) + kv_blocks(fleet, name, "quarantined") for name in alive}

    until(lambda: not any(held().values()), "no machine holds KV blocks")
