"""Stand-ins for router and machines: processes that only say that they are ready.

python stand_ins.py serve HOST:PORT [GATE]     be one; with GATE, not ready while that file exists
python stand_ins.py splitwise ARGUMENTS...     the `splitwise` command, with stand-ins for its programs
"""

import http.server
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a stand-in that serves starts without them, in a tenth of the time
    from controlplane.api import SplitwiseDeployment
    from local.plan import Plan


def serve(address: str, gate: Path | None) -> None:
    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            closed = gate is not None and gate.exists()
            self.send_response(503 if closed else 200)
            self.end_headers()
            self.wfile.write(b"the gate is closed\n" if closed else b"ready\n")

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
            pass

    host, _, port = address.rpartition(":")
    server = http.server.ThreadingHTTPServer((host, int(port)), Ready)
    print(f"serving {address}", file=sys.stderr, flush=True)
    server.serve_forever()


def stand_ins(folder: Path, port: int, *, gate: Path | None = None) -> "Plan":
    """A router and one machine that only say that they are ready."""

    from local.child import Program
    from local.plan import Plan, free_port

    def program(name: str, role: str, number: int) -> Program:
        address = f"127.0.0.1:{number}"
        command = (sys.executable, __file__, "serve", address, *([str(gate)] if gate else []))
        return Program(name, role, command, log=folder / f"{name}.log", observe=address)

    return Plan({}, (program("mixed-0", "mixed", free_port()), program("router", "router", port)))


def instead(
    deployment: "SplitwiseDeployment", *, folder: Path, weights: Path, port: int, gate: Path | None = None
) -> "Plan":
    """What `local.plan.plan` would be asked for, as stand-ins."""
    return stand_ins(folder, port, gate=gate)


def splitwise(arguments: list[str]) -> int:
    from local import cli, serve, up

    vars(serve)["plan"] = instead
    vars(up)["prepared"] = lambda path, console, **engine: path
    return cli.main(arguments)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], Path(sys.argv[3]) if sys.argv[3:] else None)
    else:
        sys.exit(splitwise(sys.argv[2:]))
