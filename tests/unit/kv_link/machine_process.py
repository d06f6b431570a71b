"""A machine as a process of its own, driven by one JSON object per line on stdin, reporting on stdout.

    {"expect": name, "source": [...], "seconds": s, "hold": [layer, "before" | "after"] | null}
    {"arm": name, "prompt": address, "target": [...], "seconds": s}
    {"release": true}    let the held put go on
    {"quarantined": true}

A transfer that is expected is filled, computed and sealed as soon as its ticket comes. "hold" stops the
sender before or after it moved the bytes of a layer, for ever or until released.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from runtime.kv_link.put import Put
from runtime.kv_link.runs import Run
from runtime.kv_link.transport import Faults
from runtime.wire import Token, Transfer
from tests.unit.kv_link.machines import LAYOUTS, QUICK, Machine, News, offer


def say(**news: Any) -> None:
    print(json.dumps(news), flush=True)


class Reporter(News):
    """Says what happens, and computes what gets a ticket."""

    machine: Machine

    def __init__(self, orders: dict[str, Any]) -> None:
        super().__init__()
        self.orders = orders
        self.released = threading.Event()

    def ticket(self, transfer: str, put: Put) -> None:
        source = self.orders[transfer]["source"]
        self.machine.fill(source, transfer)
        offer(put, source, layers=self.machine.layout.layers)

    def arrived(self, transfer: str, first: Token, stats: Transfer) -> None:
        whole = self.machine.holds(self.orders[transfer]["target"], transfer)
        say(arrived=transfer, whole=whole, visible=stats.visible_seconds, transport=stats.transport)

    def _note(self, *news: Any) -> None:
        kind, transfer, *more = news
        say(**{kind: transfer, "why": [str(what) for what in more]})

    def put(self, transfer: str, layer: int, runs: Sequence[Run]) -> Iterable[tuple[int, Sequence[Run]]]:
        hold = self.orders[transfer].get("hold")
        if hold == [layer, "before"]:
            self._hold(transfer)
        yield layer, runs
        if hold == [layer, "after"]:
            self._hold(transfer)

    def _hold(self, transfer: str) -> None:
        say(held=transfer)
        self.released.wait()


async def main(options: dict[str, Any]) -> None:
    orders: dict[str, Any] = {}
    reporter = Reporter(orders)
    machine = reporter.machine = Machine(
        options["name"],
        Path(options["folder"]),
        way=options["way"],
        layout=LAYOUTS[options["layout"]],
        limits=QUICK,
        faults=Faults(put=reporter.put),
        dead_after=options["dead_after"],
        news=reporter,
    )
    await machine.start()
    say(address=machine.address)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        obey(machine, reporter, json.loads(line))
    reporter.released.set()
    await machine.stop()


def obey(machine: Machine, reporter: Reporter, order: dict[str, Any]) -> None:
    match order:
        case {"expect": name, "seconds": seconds}:
            reporter.orders[name] = order
            machine.kv.expect(name, deadline=time.monotonic() + seconds)
        case {"arm": name, "prompt": prompt, "target": target, "seconds": seconds}:
            reporter.orders[name] = order
            deadline = time.monotonic() + seconds
            machine.kv.arm(name, prompt_machine=prompt, blocks=target, deadline=deadline)
        case {"release": _}:
            reporter.released.set()
        case {"quarantined": _}:
            say(quarantined=machine.kv.quarantined_blocks)


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
