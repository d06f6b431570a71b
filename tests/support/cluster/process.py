"""A long-running program of the cluster: its log, its death with ours, its restart."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

TETHER = pathlib.Path(__file__).with_name("tether.py")
LOG_TAIL_BYTES = 4000


class ProcessFailed(Exception):
    """A program of the cluster ended or did not answer; the message carries the end of its log."""


def tethered(command: Sequence[str]) -> list[str]:
    """`command`, wrapped so that it cannot outlive the process that starts it."""
    return [sys.executable, "-S", "-E", str(TETHER), str(os.getpid()), *command]


def tail(log: pathlib.Path) -> str:
    """The last lines of a log, for an error message."""
    if not log.exists():
        return "(no log)"
    text = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
    return text.strip() or "(empty log)"


class Process:
    """One program. Start it from the main thread: it dies with the thread that started it."""

    def __init__(self, command: Sequence[str], *, log: pathlib.Path, environment: Mapping[str, str]) -> None:
        self.name = pathlib.Path(command[0]).name
        self.log = log
        self._command = tethered(command)
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def started(self) -> bool:
        """It has been started at least once."""
        return self._child is not None

    def start(self) -> None:
        """Starts it; an error if it already runs."""
        if self.running:
            raise ProcessFailed(f"{self.name} is already running")
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        """A signal to the whole process group."""
        if self._child is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def freeze(self) -> None:
        """Stops it where it is, as if the machine hung. Returns when it stands still."""
        self.send(signal.SIGSTOP)
        if self._child is not None:
            os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Lets it go on."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it as a crash would. Returns when it is gone, so its port is free again."""
        self.send(signal.SIGKILL)
        if self._child is not None:
            self._child.wait(10)

    def stop(self, seconds: float = 5.0) -> None:
        """Asks it to end and kills it after `seconds`."""
        self.send(signal.SIGTERM)
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)
        self.kill()

    def check(self) -> None:
        """Raises ProcessFailed, with the end of the log, unless it runs."""
        if not self.running:
            raise ProcessFailed(f"{self.name} ended. {self.log.name} ends with:\n{tail(self.log)}")
