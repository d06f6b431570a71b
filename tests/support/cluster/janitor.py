"""Clears up after a cluster, however its owner ended: `python janitor.py MARK FOLDER`.

The owner holds the other end of standard input. When that closes, by a polite stop or by kill -9,
every process that carries MARK in its environment is killed and FOLDER is removed. The mark also
finds grandchildren that a process group or a parent-death signal would miss.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import time

VARIABLE = "SPLITWISE_CLUSTER"
SECONDS = 5.0


def marked(mark: str) -> list[int]:
    """The pids of all our living processes started under `mark`."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def sweep(mark: str, folder: pathlib.Path) -> None:
    deadline = time.monotonic() + SECONDS
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    sweep(sys.argv[1], pathlib.Path(sys.argv[2]))
