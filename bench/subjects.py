"""Router processes to measure: ours over machines without engines, and production-stack's if it is here."""

import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.fake_engine import serve
from bench.fake_machine import FakeMachine
from bench.load import get
from local.plan import free_port

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A running router."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """Of all its threads and children, so far."""
        tasks = [task for pid in _tree(self.pid) for task in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def pss_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


@dataclass(frozen=True, slots=True)
class Ours(Subject):
    """Our router, with what only it has."""

    token_machine: FakeMachine
    token_address: str
    secret: bytes


@asynccontextmanager
async def ours() -> AsyncIterator[Ours]:
    """Our router over one prompt machine and one token machine."""
    with tempfile.TemporaryDirectory(prefix="splitwise-bench-") as name:
        folder, secret = Path(name), secrets.token_hex(32).encode()
        token = _write_model(folder)
        (folder / "secret").write_bytes(secret)
        prompts, tokens = FakeMachine("prompt-0", "prompt", token), FakeMachine("token-0", "token", token)
        listeners = [
            await machine.listen(f"unix:{folder}/{machine.name}.sock", secret)
            for machine in (prompts, tokens)
        ]
        port = free_port()
        command = [sys.executable, "-m", "runtime.router", "--config", str(_settings(folder, port))]
        try:
            async with _process(command, port, "/readyz") as pid:
                yield Ours(pid, port, tokens, f"unix:{folder}/token-0.sock", secret)
        finally:
            for listener in listeners:
                await listener.close()


def peer_command() -> list[str] | None:
    """How to start production-stack's router, if it is installed."""
    if command := which("vllm-router"):
        return [command]
    return [sys.executable, "-m", "vllm_router.app"] if find_spec("vllm_router") else None


@asynccontextmanager
async def peer(command: Sequence[str]) -> AsyncIterator[Subject]:
    """production-stack's router, round robin over one HTTP server."""
    server, upstream = await serve()
    port = free_port()
    options = [
        "--host", "127.0.0.1", "--port", str(port), "--routing-logic", "roundrobin",
        "--service-discovery", "static", "--static-models", "bench",
        "--static-backends", f"http://127.0.0.1:{upstream}",
    ]  # fmt: skip
    try:
        async with _process([*command, *options], port, "/health") as pid:
            yield Subject(pid, port)
    finally:
        server.close()


@asynccontextmanager
async def _process(command: Sequence[str], port: int, ready: str) -> AsyncIterator[int]:
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await _is_ready(port, ready):
                if process.returncode is not None:
                    raise RuntimeError(f"{command[0]} ended with status {process.returncode}")
                await asyncio.sleep(0.05)
        yield process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _is_ready(port: int, path: str) -> bool:
    try:
        return b" 200 " in (await get(port, path)).partition(b"\r\n")[0]
    except ConnectionError:
        return False


def _tree(pid: int) -> list[int]:
    children = [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]
    return [pid, *(inner for child in children for inner in _tree(child))]


def _settings(folder: Path, port: int) -> Path:
    config = folder / "router.json"
    settings = {
        "listen": f"127.0.0.1:{port}",
        "model": {"name": "bench", "path": str(folder)},
        "link": {"secret_file": str(folder / "secret")},
        "machines": [
            {"name": name, "address": f"unix:{folder}/{name}.sock"} for name in ("prompt-0", "token-0")
        ],
    }
    config.write_text(json.dumps(settings))
    return config


def _write_model(folder: Path) -> int:
    """A tokenizer of single bytes; returns the id of a token to answer with."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: id for id, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([" token"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(alphabet)
