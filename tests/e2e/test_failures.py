"""Machines that die, stall, drain or run out of room, and clients that leave: real signals to real processes.

In every case the client gets the very answer that an undisturbed machine gives, or a clear error, within its
deadline; and nothing stays behind.
"""

import concurrent.futures
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet import TRACE, Fleet

Body = dict[str, Any]
LONG: Body = {
    "model": "tiny",
    "prompt": list(range(3, 103)),
    "max_tokens": 300,
    "temperature": 1.0,
    "seed": 5,
    "ignore_eos": True,
}
ROLES = {"prompt-0": "prompt", "prompt-1": "prompt", "token-0": "token", "token-1": "token"}
IMPATIENT = {"heartbeat_seconds": 0.1, "dead_after_seconds": 3.0}


@pytest.fixture
def fleet(model: Path, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet", model, ROLES) as fleet:
        yield fleet


@pytest.fixture
def impatient(model: Path, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet that gives a silent machine up after three seconds."""
    secret = {"secret_file": str(tmp_path / "fleet" / "secret")}
    link = {"link": secret | IMPATIENT}
    with Fleet(tmp_path / "fleet", model, ROLES, machine=link, router=link) as fleet:
        yield fleet


def until(true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Look again and again until it is so; the deadline says what was waited for."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


class Client:
    """A streaming client on a raw socket, so that it can leave or stop reading at any byte."""

    def __init__(self, fleet: Fleet, body: Body) -> None:
        host, port = fleet.url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        data = json.dumps(body | {"stream": True}).encode()
        headers = "".join(f"{name}: {value}\r\n" for name, value in TRACE.items())
        self.socket.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"{headers}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
            + data
        )
        self.seen = b""

    def read_events(self, count: int) -> None:
        """Until at least so many events have come."""
        while self.seen.count(b"data: ") < count:
            piece = self.socket.recv(65536)
            assert piece, self.seen[-500:]
            self.seen += piece

    def finish(self) -> list[Body]:
        """The whole stream's events."""
        with self.socket:
            while piece := self.socket.recv(65536):
                self.seen += piece
        lines = [line.strip() for line in self.seen.split(b"\n")]
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]

    def leave(self) -> None:
        self.socket.close()


def text(events: list[Body]) -> str:
    return "".join(choice["text"] for event in events for choice in event.get("choices", []))


def machines_of(event: Body) -> Body:
    choice: Body = event["splitwise"]["choices"][0]
    return choice


def busy(fleet: Fleet, kind: str) -> str:
    """The machine of a kind that is running something."""
    names = [name for name in fleet.processes if name.startswith(kind)]
    for name in names:
        if fleet.metrics(name).get('splitwise_kv_blocks{state="used"}', 0) > 0:
            return name
    raise AssertionError(f"no {kind} machine is busy")


def expect_nothing_held(fleet: Fleet) -> None:
    """No KV block is used or quarantined anywhere, and the router's books are empty."""
    for name in fleet.observe:
        if fleet.processes[name].poll() is not None:
            continue
        for state in ("used", "quarantined"):
            series = f'splitwise_kv_blocks{{state="{state}"}}'
            until(lambda s=series, n=name: fleet.metrics(n).get(s, 0) == 0, f"{name}: {series} is 0")  # type: ignore[misc]


@pytest.mark.fault("LEG-2")
def test_a_token_machine_killed_in_mid_stream_is_not_noticed(fleet: Fleet, unsplit: Fleet) -> None:
    """Restarted from scratch elsewhere; what the client has seen is neither repeated nor contradicted."""
    client = Client(fleet, LONG)
    client.read_events(20)
    fleet.kill(busy(fleet, "token"))
    events = client.finish()
    assert text(events) == unsplit.post("/v1/completions", LONG)["choices"][0]["text"]
    assert machines_of(events[-1])["restarts"] == 1
    expect_nothing_held(fleet)


def test_a_prompt_machine_killed_while_it_computes_is_not_noticed(fleet: Fleet, unsplit: Fleet) -> None:
    body = LONG | {"prompt": list(range(3, 383)) * 20, "max_tokens": 5}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fleet.post, "/v1/completions", body)
        until(lambda: _prompt_legs(fleet) != [], "a prompt leg has begun")
        fleet.kill(_prompt_legs(fleet)[0])
        got = answer.result(60)
    assert got["choices"][0]["text"] == unsplit.post("/v1/completions", body)["choices"][0]["text"]
    assert machines_of(got)["restarts"] == 1
    expect_nothing_held(fleet)


def _prompt_legs(fleet: Fleet) -> list[str]:
    """The prompt machine of every leg that the router has open now."""
    series = fleet.metrics("router")
    legs = {name: int(series.get(f'splitwise_machine_legs{{machine="{name}"}}', 0)) for name in fleet.observe}
    return [name for name, count in legs.items() if name.startswith("prompt") for _ in range(count)]


@pytest.mark.fault("KV-5")
def test_a_token_machine_that_stalls_is_given_up_within_its_silence(impatient: Fleet, unsplit: Fleet) -> None:
    client = Client(impatient, LONG)
    client.read_events(20)
    stalled = busy(impatient, "token")
    impatient.signal(stalled, signal.SIGSTOP)
    try:
        events = client.finish()
    finally:
        impatient.signal(stalled, signal.SIGCONT)
    assert text(events) == unsplit.post("/v1/completions", LONG)["choices"][0]["text"]
    assert machines_of(events[-1])["restarts"] >= 1
    expect_nothing_held(impatient)


@pytest.mark.fault("LINK-3")
def test_a_machine_restarted_five_times_under_load_takes_part_each_time(fleet: Fleet) -> None:
    body = LONG | {"max_tokens": 4}

    def served_by(_: int) -> str:
        machine: str = machines_of(fleet.post("/v1/completions", body))["token_machine"]
        return machine

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            fleet.kill("token-0")
            fleet.start("token-0")
            until(lambda: "token-0" in set(pool.map(served_by, range(4))), "token-0 gets traffic", 30)


@pytest.mark.fault("KV-1", "KV-6")
def test_clients_that_leave_at_any_moment_leave_nothing_behind(fleet: Fleet) -> None:
    for moment in range(40):
        client = Client(fleet, LONG | {"prompt": list(range(3, 103)) * (1 + moment % 8)})
        if moment % 4:
            client.read_events(moment % 4)
        client.leave()
    expect_nothing_held(fleet)
    assert fleet.post("/v1/completions", LONG | {"max_tokens": 3})["usage"]["completion_tokens"] == 3


@pytest.mark.fault("STREAM-1")
def test_cancelled_prompts_do_not_delay_the_next_request(fleet: Fleet) -> None:
    """Ten prompts cancelled in the queue are never computed: the machines sample nothing for them."""
    before = _sampled(fleet)
    clients = [Client(fleet, LONG | {"prompt": list(range(3, 383)) * 12}) for _ in range(10)]
    until(lambda: len(_prompt_legs(fleet)) == 10, "ten prompt legs have begun")
    for client in clients:
        client.leave()
    fleet.post("/v1/completions", LONG | {"max_tokens": 2})
    assert _sampled(fleet) - before < 10, "cancelled prompts were computed all the same"
    expect_nothing_held(fleet)


def _sampled(fleet: Fleet) -> float:
    return sum(fleet.metrics(name).get("splitwise_engine_tokens_total", 0) for name in fleet.observe)


@pytest.mark.fault("DRAIN-2")
def test_a_machine_told_to_end_finishes_its_streams_first(fleet: Fleet, unsplit: Fleet) -> None:
    client = Client(fleet, LONG)
    client.read_events(5)
    leaving = busy(fleet, "token")
    fleet.signal(leaving, signal.SIGTERM)
    until(lambda: not fleet.is_ready(leaving), f"{leaving} drains")
    for _ in range(4):  # nothing new goes there
        answer = fleet.post("/v1/completions", LONG | {"max_tokens": 3})
        assert machines_of(answer)["token_machine"] != leaving
    events = client.finish()
    assert text(events) == unsplit.post("/v1/completions", LONG)["choices"][0]["text"]
    assert machines_of(events[-1])["restarts"] == 0
    assert fleet.processes[leaving].wait(20) == 0


def test_a_request_out_of_time_ends_with_an_error_and_frees_everything(model: Path, tmp_path: Path) -> None:
    router = {"request_timeout_seconds": 0.5}
    with Fleet(tmp_path / "late", model, ROLES, router=router) as fleet:
        status, answer = fleet.send("/v1/completions", LONG | {"max_tokens": 8000})
        assert status == 504, answer
        assert "0.5" in json.loads(answer)["error"]["message"]
        expect_nothing_held(fleet)


def test_a_kv_pool_too_small_for_everyone_preempts_and_still_answers_exactly(
    model: Path, unsplit: Fleet, tmp_path: Path
) -> None:
    """Sixteen requests of which about five fit: the rest wait, or are recomputed, to the same tokens."""
    bodies = [LONG | {"seed": seed, "max_tokens": 60} for seed in range(16)]
    block = 4 * 2 * 2 * 16 * 16 * 4
    with (
        Fleet(tmp_path / "tight", model, ROLES, kv_bytes=50 * block) as fleet,
        concurrent.futures.ThreadPoolExecutor(16) as pool,
    ):
        answers = list(pool.map(lambda body: fleet.post("/v1/completions", body), bodies))
        expect_nothing_held(fleet)
    for body, answer in zip(bodies, answers, strict=True):
        expected = unsplit.post("/v1/completions", body)
        assert answer["choices"][0]["text"] == expected["choices"][0]["text"]


@pytest.mark.fault("SPLIT-1")
def test_an_empty_pool_is_said_not_papered_over(model: Path, tmp_path: Path) -> None:
    router = {"wait_for_machines_seconds": 0.2}
    with Fleet(tmp_path / "half", model, ROLES, router=router) as fleet:
        for name in ("prompt-0", "prompt-1"):
            fleet.kill(name)
        until(lambda: fleet.send("/readyz", b"")[0] != 200, "the router is not ready any more")
        for _ in range(5):
            status, answer = fleet.send("/v1/completions", LONG)
            assert status == 503, answer
            assert "prompt" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    "rest",
    [
        b"/v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nTOPSECRET\r\n",
        b"/v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOPSECRET\x01\r\n\r\n",
        b"TOPSECRET HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_a_client_sent_is_never_logged(unsplit: Fleet, rest: bytes) -> None:
    """Not even where the request cannot be read and its raw bytes would explain why."""
    host, port = unsplit.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(b"POST " + rest)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass
    assert unsplit.post("/v1/completions", LONG | {"max_tokens": 1})["choices"]
    assert "TOPSECRET" not in unsplit.log("router")


def test_a_body_that_is_not_what_its_headers_say_is_the_clients_mistake(unsplit: Fleet) -> None:
    request = urllib.request.Request(
        unsplit.url + "/v1/completions",
        b"nonsense",
        {"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)
    with caught.value as answer:
        assert answer.code == 400
        assert json.loads(answer.read())["error"]["type"] == "invalid_request_error"


def test_a_fleet_that_was_killed_leaves_nothing_to_trip_over(model: Path, tmp_path: Path) -> None:
    """Everything killed at once, then started again in the same place."""
    fleet = Fleet(tmp_path / "again", model, {"mixed-0": "mixed", "prompt-0": "prompt", "token-0": "token"})
    for _ in range(2):
        with fleet:
            assert fleet.post("/v1/completions", LONG | {"max_tokens": 3})["usage"]["completion_tokens"] == 3
