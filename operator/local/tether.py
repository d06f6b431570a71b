"""Runs a command that dies with its parent: `python tether.py PARENT_PID COMMAND...`.

A supervisor killed with -9 cannot clean up, so the kernel is asked to. The request must come between fork
and exec, where a program with threads must not run Python: hence a script of its own.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Become `command`. The request survives the exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        raise SystemExit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        raise SystemExit(127) from None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
