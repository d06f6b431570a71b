"""A deployment from its start to its end, with stand-ins for the programs."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from controlplane.api import parse
from deployments import deployment
from local import rundir
from local.rundir import RunFailed
from local.serve import Options, Running, port_of, refuse_early, running
from local.wish import Ended, Wish, first
from stand_ins import instead

DEPLOYMENT = parse(deployment(engine={"name": "reference"}, pools={"mixed": {}}))
SECONDS = 60.0


@pytest.fixture(autouse=True)
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs are stand-ins; they are not ready while the file exists."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("local.serve.plan", partial(instead, gate=tmp_path / "gate"))
    return tmp_path / "gate"


@pytest.fixture
def _closed(gate: Path) -> None:
    """The stand-ins never get ready."""
    gate.touch()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@asynccontextmanager
async def up(
    *, deadline: float = SECONDS, restart: bool = True, wish: Wish | None = None, said: StringIO | None = None
) -> AsyncIterator[Running]:
    async with running(
        DEPLOYMENT,
        weights=Path("none"),
        options=Options(port=0, deadline=deadline, restart=restart),
        console=Console(file=said or StringIO(), width=200),
        wish=wish or Wish(),
    ) as run:
        yield run


async def test_it_is_ready_then_ends_and_leaves_nothing() -> None:
    async with up() as run:
        (record,) = rundir.running()
        assert record.endpoint == run.endpoint
        assert [(p.name, p.role, p.state, p.restarts) for p in record.programs] == [
            ("mixed-0", "mixed", "running", 0),
            ("router", "router", "running", 0),
        ]
        assert record.supervisor.pid == os.getpid()
        assert all(program.process.is_alive for program in record.programs)
        assert (run.folder / "secret").stat().st_mode & 0o777 == 0o600
    assert not any(program.process.is_alive for program in record.programs)
    assert not run.folder.exists()
    assert rundir.running() == []


async def test_a_lost_machine_is_told_recorded_and_started_again() -> None:
    said = StringIO()
    async with up(said=said) as run:
        machine = run.supervisor.watched["mixed-0"]
        before = machine.process
        machine.process.send(signal.SIGKILL)
        await asyncio.to_thread(until, lambda: rundir.running()[0].programs[0].restarts == 1)
        assert machine.process != before
    assert "mixed-0 ended (killed by SIGKILL)" in said.getvalue()


@pytest.mark.usefixtures("_closed")
async def test_what_does_not_get_ready_in_time_is_named() -> None:
    with pytest.raises(RunFailed, match=r"not ready after 0\.5 seconds: waiting for mixed-0.*, router"):
        async with up(deadline=0.5):
            pass
    assert rundir.running() == []


@pytest.mark.usefixtures("_closed")
async def test_a_wish_to_end_is_heard_before_it_is_ready() -> None:
    wish = Wish()
    wish.hear()
    with pytest.raises(Ended):
        async with up(wish=wish):
            pass
    assert list(rundir.home().iterdir()) == []


async def test_a_program_that_fails_at_the_start_ends_it_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr("local.serve.port_of", lambda deployment, options: taken.getsockname()[1])
        with pytest.raises(RunFailed, match="Address already in use"):
            async with up():
                pass


async def test_without_restart_the_end_of_a_program_is_the_end() -> None:
    async with up(restart=False) as run:
        run.supervisor.watched["mixed-0"].process.send(signal.SIGKILL)
        async with asyncio.timeout(SECONDS):
            with pytest.raises(RunFailed, match="killed by SIGKILL"):
                await run.until_ended(Wish())


async def test_the_user_ends_it() -> None:
    wish = Wish()
    async with up() as run:
        wish.hear()
        async with asyncio.timeout(SECONDS):
            await run.until_ended(wish)


def test_an_occupied_port_is_refused_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunFailed, match=f"port {port} on 127.0.0.1 .*--port"):
            port_of(DEPLOYMENT, Options(port=port))
        with pytest.raises(RunFailed, match="--port"):
            refuse_early(DEPLOYMENT, Options(port=port))


def test_the_port_is_the_options_or_the_deployments() -> None:
    free = port_of(DEPLOYMENT, Options(port=0))
    assert port_of(DEPLOYMENT, Options(port=free)) == free
    written = parse(deployment(engine={"name": "reference"}, router={"port": free}))
    assert port_of(written, Options()) == free


async def test_a_second_one_of_that_name_is_refused_early() -> None:
    async with up():
        with pytest.raises(RunFailed, match="splitwise down tiny"):
            refuse_early(DEPLOYMENT, Options(port=0))


async def test_two_wishes_insist() -> None:
    wish = Wish()
    with wish.heard():
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(SECONDS):
            await wish.to_end.wait()
        assert not wish.at_once.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            await wish.at_once.wait()


async def test_first_cancels_the_rest_and_raises_what_was_raised() -> None:
    cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def fails() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await first(forever(), fails())
    assert cancelled.is_set()
