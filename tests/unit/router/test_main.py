"""The router as a process: it starts, says what is wrong, and ends gracefully."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fake_machine import FakeMachine, write_secret
from local.child import tethered
from local.plan import free_port

Pair = tuple[FakeMachine, FakeMachine]
SECONDS = 60.0


def settings_of(folder: Path, model: Path, pair: tuple[FakeMachine, ...] = ()) -> dict[str, Any]:
    return {
        "listen": f"127.0.0.1:{free_port()}",
        "model": {"name": "tiny", "path": str(model)},
        "link": {"secret_file": str(write_secret(folder))},
        "machines": [{"name": machine.name, "address": machine.address} for machine in pair],
    }


async def start(folder: Path, settings: dict[str, Any]) -> asyncio.subprocess.Process:
    config = folder / "router.json"
    config.write_text(json.dumps(settings))
    return await asyncio.create_subprocess_exec(
        *tethered((sys.executable, "-m", "runtime.router", "--config", str(config))),
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def running(
    folder: Path, settings: dict[str, Any]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, aiohttp.ClientSession]]:
    """A router process that is ready, and a client for it."""
    process = await start(folder, settings)
    try:
        async with aiohttp.ClientSession(f"http://{settings['listen']}") as session:
            async with asyncio.timeout(SECONDS):
                while not await ready(session):
                    assert process.returncode is None
                    await asyncio.sleep(0.02)
            yield process, session
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get("/readyz") as response:
            return response.status == 200
    except aiohttp.ClientConnectionError:
        return False


@pytest.mark.fault("DRAIN-2")
async def test_sigterm_lets_streams_finish_and_takes_nothing_new(
    tmp_path: Path, model: Path, pair: Pair
) -> None:
    settings = settings_of(tmp_path, model, pair)
    async with running(tmp_path, settings) as (process, session):
        body = {"model": "tiny", "prompt": [5], "max_tokens": 3, "stream": True}
        answer = asyncio.create_task(read(session, body))
        prompt, token = await pair[0].leg(), await pair[1].leg()
        prompt.send(80, end="handoff")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            while await listening(settings["listen"]):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        token.send(80)
        token.send(80, end="length")
        assert (await answer).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), SECONDS) == 0


async def read(session: aiohttp.ClientSession, body: dict[str, Any]) -> bytes:
    async with session.post("/v1/completions", json=body) as response:
        return await response.read()


async def listening(address: str) -> bool:
    host, port = address.split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionError:
        return False
    writer.close()
    return True


async def test_a_second_signal_ends_at_once(tmp_path: Path, model: Path, pair: Pair) -> None:
    async with running(tmp_path, settings_of(tmp_path, model, pair)) as (process, session):
        answer = asyncio.create_task(read(session, {"model": "tiny", "prompt": [5], "max_tokens": 3}))
        _, token = await pair[0].leg(), await pair[1].leg()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            while token.connection.is_closed is False and process.returncode is None:
                process.send_signal(signal.SIGINT)
                await asyncio.sleep(0.02)
            assert await process.wait() == 0
        with pytest.raises(aiohttp.ClientError):
            await answer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listen": "nowhere"}, "neither host:port nor unix:/path"),
        ({"model": {"name": "tiny", "path": "/nonexistent"}}, "no usable tokenizer in /nonexistent"),
        ({"link": {"secret_file": "/nonexistent"}}, "link secret /nonexistent"),
        ({"colour": "blue"}, "colour"),
    ],
)
async def test_unusable_settings_end_with_2_and_a_sentence(
    tmp_path: Path, model: Path, changes: dict[str, Any], message: str
) -> None:
    process = await start(tmp_path, settings_of(tmp_path, model) | changes)
    _, err = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 2
    assert message in err.decode().splitlines()[-1]
    assert "Traceback" not in err.decode()


async def test_a_unix_socket_will_do(tmp_path: Path, model: Path) -> None:
    socket = tmp_path / "router.sock"
    process = await start(tmp_path, settings_of(tmp_path, model) | {"listen": f"unix:{socket}"})
    try:
        async with asyncio.timeout(SECONDS):
            while not socket.exists():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session,
            session.get("http://router/healthz") as response,
        ):
            assert response.status == 200
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 0
