"""Fleets of real processes on loopback: one router and machines, from settings files as in production.

    with Fleet(folder, model, {"prompt-0": "prompt", "token-0": "token"}) as fleet:
        body = fleet.post("/v1/completions", {...})

Everything dies with the test: on exit, and by the kernel if the test itself is killed.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from local.child import tethered
from local.plan import free_port

READY_SECONDS = 60.0
TRACE = {"X-Splitwise-Trace": "1"}


class Fleet:
    """`machines` maps names to roles. `transport` and `layerwise_above` are those of every machine;
    `machine` and `router` hold further settings. `threads` are for the arithmetic of each process."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        machines: Mapping[str, str],
        *,
        transport: str = "auto",
        layerwise_above: int = 512,
        kv_bytes: int = 64 * 2**20,
        machine: Mapping[str, Any] | None = None,
        router: Mapping[str, Any] | None = None,
        threads: int = 1,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._configs: dict[str, Path] = {}
        self._environment = {"OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        secret = folder / "secret"
        secret.write_bytes(secrets.token_hex(32).encode())
        shared = {
            "model": {"name": "tiny", "path": str(model)},
            "link": {"secret_file": str(secret)},
        }
        self.observe = {name: f"127.0.0.1:{free_port()}" for name in machines}
        for name, role in machines.items():
            self._write(
                name,
                shared
                | {
                    "name": name,
                    "role": role,
                    "listen": f"unix:{folder}/{name}.sock",
                    "observe": self.observe[name],
                    "kv": {"memory_bytes": kv_bytes},
                    "transfer": {
                        "transport": transport,
                        "layerwise_above_tokens": layerwise_above,
                        "calibrate": False,
                    },
                    "cache_dir": str(folder / "cache"),
                }
                | dict(machine or {}),
            )
        addresses = [{"name": name, "address": f"unix:{folder}/{name}.sock"} for name in machines]
        listen = self.url.removeprefix("http://")
        self._write("router", shared | {"listen": listen, "machines": addresses} | dict(router or {}))

    def __enter__(self) -> Self:
        for name in self._configs:
            self.start(name)
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(10)

    # ---- processes

    def start(self, name: str) -> None:
        """Start (again) one process of the fleet."""
        module = "runtime.router" if name == "router" else "runtime.machine"
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                tethered((sys.executable, "-m", module, "--config", str(self._configs[name]))),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self._environment,
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until it is gone."""
        self.processes[name].kill()
        self.processes[name].wait(10)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Until every machine and the router say that they are ready."""
        for name, address in self.observe.items():
            self._wait(f"http://{address}/readyz", name, seconds)
        self._wait(f"{self.url}/readyz", "router", seconds)

    def is_ready(self, name: str) -> bool:
        """What a machine's /readyz says now."""
        return _answers(f"http://{self.observe[name]}/readyz")

    def _wait(self, url: str, name: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not _answers(url):
            if self.processes[name].poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{name} did not get ready:\n{self.log(name)[-4000:]}")
            time.sleep(0.02)

    # ---- requests

    def send(self, path: str, body: Any, seconds: float = 60.0) -> tuple[int, bytes]:
        """Status and body of a POST."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | TRACE
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON body of a POST that must succeed."""
        status, answer = self.send(path, body)
        assert status == 200, answer
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    def stream(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every event of a streamed POST that must succeed; the last line must be [DONE]."""
        status, answer = self.send(path, {**body, "stream": True})
        assert status == 200, answer
        lines = list(_data(answer))
        assert lines[-1] == b"[DONE]", answer[-500:]
        return [json.loads(line) for line in lines[:-1]]

    def metrics(self, name: str) -> dict[str, float]:
        """A process's metrics, by series."""
        url = f"{self.url}/metrics" if name == "router" else f"http://{self.observe[name]}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            lines = response.read().decode().splitlines()
        series = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in series}

    # ---- settings

    def _write(self, name: str, settings: Mapping[str, Any]) -> None:
        self._configs[name] = self.folder / f"{name}.json"
        self._configs[name].write_text(json.dumps(settings))


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def _data(answer: bytes) -> Iterator[bytes]:
    for line in answer.split(b"\n"):
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ").rstrip(b"\r")
