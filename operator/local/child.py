"""One program as one process: started, watched, ended, and never outliving the process that started it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TETHER = Path(__file__).with_name("tether.py")
_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. observe: where the program answers /metrics and /readyz; empty for nowhere."""

    name: str
    role: str
    command: tuple[str, ...]
    log: Path
    observe: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """A process by something that is never used again: its number and the kernel's start time."""

    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        return self.started != 0 and start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """A signal to exactly this process; nothing if it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            if self.is_alive:  # checked while the descriptor holds the process
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def start_time(pid: int) -> int:
    """When the kernel started a process, in its own ticks; 0 if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def tethered(command: Iterable[str]) -> tuple[str, ...]:
    """The command, wrapped so that it cannot outlive this process."""
    return (sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command)


async def spawn(program: Program, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start the program with no input and its output appended to its log."""
    with program.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *tethered(program.command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environment),
            start_new_session=True,
        )


def ended(code: int) -> str:
    """How a process ended, from its return code: "killed by SIGKILL" or "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def last_words(log: Path) -> str:
    """The last line of a log that is not empty, or ""; of a JSON line its event and the end of its error."""
    line = _last_line(log)
    try:
        fields = json.loads(line)
        error = str(fields.get("error", "")).strip().splitlines()
        return ": ".join((fields["event"], *error[-1:]))
    except (ValueError, KeyError, AttributeError, TypeError):
        return line


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
