"""`splitwise ps`, `logs` and `down`: what runs on this computer, what it says, and its end."""

import contextlib
import os
import select
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from local.rundir import ProgramRecord, Record, RunFailed, home, running

_DOWN_SECONDS = 30.0
"""Beyond the time that running answers are given."""
_FOLLOW_SECONDS = 0.2


def chosen(name: str | None) -> Record:
    """The running deployment of that name, or the only one. Raises RunFailed."""
    up = running()
    if not up:
        raise RunFailed("nothing is up; start a deployment with: splitwise up FILE")
    names = ", ".join(record.deployment for record in up)
    if name is None and len(up) > 1:
        raise RunFailed(f"several deployments are up, name one of them: {names}")
    found = [record for record in up if name in (None, record.deployment)]
    if not found:
        raise RunFailed(f"{name} is not up; up are: {names}")
    return found[0]


def ps(console: Console) -> None:
    """A table of every program of every running deployment."""
    table = Table(box=None, pad_edge=False)
    for column in ("deployment", "name", "role", "pid", "state", "restarts", "observe"):
        table.add_column(column.upper(), justify="right" if column in ("pid", "restarts") else "left")
    for record in running():
        for program in record.programs:
            table.add_row(
                record.deployment,
                program.name,
                program.role,
                str(program.pid),
                _state(program),
                str(program.restarts),
                program.observe,
            )
    console.print(table if table.rows else "nothing is up")


def _state(program: ProgramRecord) -> str:
    """`ready` if the program says so itself, else what its supervisor knows."""
    if program.state != "running" or not program.observe:
        return program.state
    try:
        with urllib.request.urlopen(f"http://{program.observe}/readyz", timeout=1.0):
            return "ready"
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return "not ready"


def logs(deployment: str | None, name: str | None, *, follow: bool, console: Console) -> None:
    """Print the programs' logs, or one program's; with `follow` until the deployment ends."""
    record = chosen(deployment)
    programs = [program for program in record.programs if name in (None, program.name)]
    if not programs:
        known = ", ".join(program.name for program in record.programs)
        raise RunFailed(f"no program {name}; there are: {known}")
    tails = [_lines(program.log) for program in programs]
    while True:
        for program, tail in zip(programs, tails, strict=True):
            for line in tail:
                if line is None:
                    break
                prefix = "" if name else f"{program.name}: "
                console.print(f"{prefix}{line}", markup=False, highlight=False, soft_wrap=True)
        if not follow or not record.supervisor.is_alive:
            return
        time.sleep(_FOLLOW_SECONDS)


def _lines(log: Path) -> Iterator[str | None]:
    """The lines of a log as they come; None whenever there is no more for now."""
    held = ""
    with contextlib.suppress(FileNotFoundError), log.open(errors="replace") as file:
        while True:
            held += file.readline()
            if held.endswith("\n"):
                yield held.rstrip("\n")
                held = ""
            else:
                yield None


def down(deployment: str | None, *, console: Console) -> None:
    """End a running deployment and wait until it is gone. Raises RunFailed if it is not within the time."""
    record = chosen(deployment)
    seconds = _DOWN_SECONDS + record.drain_seconds
    try:
        descriptor = os.pidfd_open(record.supervisor.pid)
    except ProcessLookupError:
        return
    try:
        record.supervisor.send(signal.SIGTERM)
        with console.status(f"ending {record.deployment}"):
            gone, _, _ = select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)
    if not gone:
        raise RunFailed(
            f"{record.deployment} (process {record.supervisor.pid}) has not ended after {seconds:g}"
            f" seconds; its logs are in {home() / record.deployment}"
        )
    console.print(f"{record.deployment} is down")
