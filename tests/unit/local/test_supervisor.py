"""The supervisor: programs start, are started again with a reason, and never outlive it."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from local.child import Process, Program, ended, last_words, start_time
from local.supervisor import Supervisor, backoff

UP = "import signal, sys; print('up', flush=True); open(sys.argv[1], 'w').write('up'); "
FOREVER = UP + "signal.pause()"
STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); " + UP + "signal.pause()"
SECONDS = 60.0


def program(folder: Path, code: str, *, name: str = "prompt-0", role: str = "prompt") -> Program:
    """A Python one-liner as a program; its argument is a pipe where it may say that it is up."""
    pipe = folder / f"{name}.pipe"
    os.mkfifo(pipe)
    return Program(name, role, (sys.executable, "-c", code, str(pipe)), log=folder / f"{name}.log")


async def up(program: Program) -> None:
    """Until the program says that it is up."""
    descriptor = os.open(program.command[-1], os.O_RDWR)
    try:
        assert await asyncio.to_thread(readable, descriptor)
        os.read(descriptor, 16)
    finally:
        os.close(descriptor)


def readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], SECONDS)[0])


class Notes:
    """What a supervisor told, and a way to wait for it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.moved = asyncio.Event()

    def tell(self, sentence: str) -> None:
        self.told.append(sentence)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                self.moved.clear()
                await self.moved.wait()


@asynccontextmanager
async def supervised(
    *programs: Program, restart: bool = True, settle: bool = True
) -> AsyncIterator[tuple[Supervisor, Notes]]:
    notes = Notes()
    supervisor = Supervisor(
        environment=os.environ, told=notes.tell, changed=notes.moved.set, wait=lambda n: 0.0, restart=restart
    )
    try:
        await supervisor.start(programs)
        if settle:
            supervisor.settle()
        yield supervisor, notes
    finally:
        supervisor.kill()
        await supervisor.stop(grace=SECONDS)


async def test_a_dead_program_is_started_again_and_its_end_is_told(tmp_path: Path) -> None:
    async with supervised(program(tmp_path, FOREVER)) as (supervisor, notes):
        watched = supervisor.watched["prompt-0"]
        await up(watched.program)
        first = watched.process
        first.send(signal.SIGKILL)
        await notes.until(lambda: watched.restarts == 1 and watched.state == "running")
        assert notes.told == ["prompt-0 ended (killed by SIGKILL); starting it again"]
        assert watched.process.is_alive
        assert not first.is_alive


async def test_the_exit_code_and_the_last_words_are_told(tmp_path: Path) -> None:
    gate = tmp_path / "once"
    code = f"""
import pathlib, signal, sys
gate = pathlib.Path({str(gate)!r})
if gate.exists():
    signal.pause()
gate.touch()
print("weights are missing", flush=True)
sys.exit(3)
"""
    async with supervised(program(tmp_path, code)) as (supervisor, notes):
        await notes.until(lambda: supervisor.watched["prompt-0"].restarts == 1)
        assert notes.told[0].startswith("prompt-0 ended (exit code 3); its last words: weights are missing")


async def test_a_program_that_ends_before_all_is_ready_is_a_failure(tmp_path: Path) -> None:
    async with supervised(program(tmp_path, "raise SystemExit('no such model')"), settle=False) as (
        supervisor,
        notes,
    ):
        async with asyncio.timeout(SECONDS):
            assert "no such model" in await supervisor.failure
        assert notes.told == []
        assert supervisor.watched["prompt-0"].restarts == 0


async def test_without_restart_an_end_is_a_failure(tmp_path: Path) -> None:
    async with supervised(program(tmp_path, "pass"), restart=False) as (supervisor, _):
        async with asyncio.timeout(SECONDS):
            assert "exit code 0" in await supervisor.failure


async def test_stop_asks_first_and_ends_only_the_roles_named(tmp_path: Path) -> None:
    machine = program(tmp_path, FOREVER)
    router = program(tmp_path, FOREVER, name="router", role="router")
    async with supervised(machine, router) as (supervisor, notes):
        await up(router)
        await supervisor.stop("router", grace=SECONDS)
        assert supervisor.watched["router"].handle.returncode == -signal.SIGTERM
        assert supervisor.watched["router"].state == "ended"
        assert supervisor.watched["prompt-0"].process.is_alive
        await supervisor.stop(grace=SECONDS)
        assert not supervisor.watched["prompt-0"].process.is_alive
        assert notes.told == []


async def test_what_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    async with supervised(program(tmp_path, STUBBORN)) as (supervisor, _):
        await up(supervisor.watched["prompt-0"].program)
        await supervisor.stop(grace=0.01)
        assert supervisor.watched["prompt-0"].handle.returncode == -signal.SIGKILL


async def test_a_stop_during_the_wait_for_a_restart_is_final(tmp_path: Path) -> None:
    notes = Notes()
    supervisor = Supervisor(
        environment=os.environ, told=notes.tell, changed=notes.moved.set, wait=lambda n: 3600.0
    )
    await supervisor.start([program(tmp_path, FOREVER)])
    supervisor.settle()
    watched = supervisor.watched["prompt-0"]
    watched.process.send(signal.SIGKILL)
    await notes.until(lambda: watched.state == "waiting")
    await supervisor.stop(grace=SECONDS)
    assert watched.state == "ended"
    assert watched.restarts == 0


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, pathlib, sys
from local.child import Program
from local.supervisor import Supervisor

async def main():
    supervisor = Supervisor(environment=os.environ)
    child = "import signal; signal.pause()"
    log = pathlib.Path({str(tmp_path)!r}) / "child.log"
    await supervisor.start([Program("prompt-0", "prompt", (sys.executable, "-c", child), log)])
    print(supervisor.watched["prompt-0"].process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        child = Process(pid, start_time(pid))
        assert child.is_alive
        gone = os.pidfd_open(pid)
        owner.kill()
        owner.communicate(timeout=SECONDS)
    assert readable(gone)
    os.close(gone)
    assert not child.is_alive


def test_waits_grow_to_a_bound() -> None:
    assert [backoff(n) for n in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")],
)
def test_how_a_process_ended(code: int, text: str) -> None:
    assert ended(code) == text


def test_the_last_words_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_bytes(b"x" * 20000 + b"\nfirst\n last \n\n")
    assert last_words(log) == "last"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"event": "ready", "machine": "token-0"}, "ready"),
        ({"event": "failed", "error": "Traceback\n  file\nValueError: no"}, "failed: ValueError: no"),
        ({"other": 1}, '{"other": 1}'),
        (["event"], '["event"]'),
    ],
)
def test_the_last_words_of_a_json_log_are_its_event_and_error(
    line: object, words: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(json.dumps(line))
    assert last_words(tmp_path / "log") == words


def test_a_process_is_not_mistaken_for_another_with_its_number() -> None:
    here = Process(os.getpid(), start_time(os.getpid()))
    assert here.is_alive
    assert not Process(os.getpid(), here.started + 1).is_alive
    Process(os.getpid(), here.started + 1).send(signal.SIGKILL)  # we live on
