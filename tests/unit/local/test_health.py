"""Programs that hang: noticed, told, ended, and started again; those that answer are left alone."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from local import health
from local.plan import free_port
from local.supervisor import Supervisor
from stand_ins import stand_ins

SECONDS = 60.0


async def up(session: aiohttp.ClientSession, address: str) -> None:
    """Until somebody answers there."""
    while True:
        if (await health.ask(session, address, "/readyz")).came:
            return
        await asyncio.sleep(0.02)


async def test_what_a_program_says_is_heard(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    supervisor = Supervisor(environment=os.environ)
    machine, _ = stand_ins(tmp_path, free_port(), gate=gate).programs
    await supervisor.start([machine])
    try:
        async with asyncio.timeout(SECONDS), health.asking(5.0) as session:
            await up(session, machine.observe)
            answer = await health.ask(session, machine.observe, "/readyz")
            assert answer == health.Answer(True, False, "the gate is closed")
            gate.unlink()
            assert await health.ask(session, machine.observe, "/readyz") == health.Answer(True, True, "ready")
    finally:
        supervisor.kill()
        await supervisor.stop(grace=SECONDS)


async def test_a_program_that_hangs_is_started_again_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MISSES", 2)
    told: list[str] = []
    again = asyncio.Event()
    supervisor = Supervisor(
        environment=os.environ,
        told=told.append,
        changed=lambda: again.set() if any(w.restarts for w in supervisor.watched.values()) else None,
        wait=lambda failures: 0.0,
    )
    programs = stand_ins(tmp_path, free_port()).programs
    await supervisor.start(programs)
    watching: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(SECONDS), health.asking(5.0) as session:
            for program in programs:
                await up(session, program.observe)
            supervisor.settle()
            os.kill(supervisor.watched["mixed-0"].process.pid, signal.SIGSTOP)
            watching = asyncio.create_task(health.end_those_that_hang(supervisor, beat=1.0))
            await again.wait()
            assert {name: watched.restarts for name, watched in supervisor.watched.items()} == {
                "mixed-0": 1,
                "router": 0,
            }
            assert told[0] == "mixed-0 has not answered for 2 s; ending it"
            assert "killed by SIGKILL" in told[1]
    finally:
        if watching:
            watching.cancel()
        supervisor.kill()
        await supervisor.stop(grace=SECONDS)
