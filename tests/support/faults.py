"""The fault table: `python tests/support/faults.py [ID ...]` runs the tests marked with rows of
docs/faults.md (all, or these) and says of each row whether it holds.

Exit status 1: a row fails, has neither a test nor a reason to wait, or a test is marked with an unknown id.
"""

import pathlib
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pytest
from rich.console import Console
from rich.table import Table

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "faults.md"
ROW = re.compile(r"^\| ([A-Z]+-\d+) \| ([^|]+?) \| ([^|]+?) \| ([^|]*?) ?\|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. `waits` is empty, or says what has to exist before it can be tried."""

    id: str
    scenario: str
    holds: str
    waits: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended: "passed", "failed" or "skipped", and why it was skipped."""

    kind: str
    why: str = ""


def rows(page: str) -> dict[str, Row]:
    """The rows of the page, by id."""
    found = [Row(*(cell.strip() for cell in match.groups())) for match in ROW.finditer(page)]
    return {row.id: row for row in found}


def judge(row: Row, outcomes: Collection[Outcome]) -> tuple[str, bool]:
    """What to print of a row whose tests ended so, and whether that is fine."""
    kinds = [outcome.kind for outcome in outcomes]
    if not kinds:
        return (f"waits for {row.waits}", True) if row.waits else ("NO TEST", False)
    if "failed" in kinds:
        return f"FAILED: {kinds.count('failed')} of {len(kinds)} tests", False
    skipped = [outcome.why for outcome in outcomes if outcome.kind == "skipped"]
    if not skipped:
        return "holds", True
    if len(skipped) == len(kinds):
        return f"not run here: {skipped[0]}", True
    return f"holds; {len(skipped)} of {len(kinds)} tests not run here: {skipped[0]}", True


class Recorder:
    """A pytest plugin: keeps the tests that are marked with a wanted row, and remembers how they end."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = set(wanted)
        self._ended: dict[str, Outcome] = {}
        self.ids: dict[str, set[str]] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        marked = {
            item: {id for mark in item.iter_markers("fault") for id in mark.args if self._cares(id)}
            for item in items
        }
        config.hook.pytest_deselected(items=[item for item in items if not marked[item]])
        items[:] = [item for item in items if marked[item]]
        self.ids = {item.nodeid: marked[item] for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._ended[report.nodeid] = Outcome("failed")
        elif report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            self._ended[report.nodeid] = Outcome("skipped", why.removeprefix("Skipped: "))
        elif report.when == "call":
            self._ended[report.nodeid] = Outcome("passed")

    def outcomes(self, row: str) -> dict[str, Outcome]:
        """The row's tests and how each ended; one that never did has failed."""
        mine = [test for test, ids in self.ids.items() if row in ids]
        return {test: self._ended.get(test, Outcome("failed")) for test in mine}

    def unknown(self, known: Collection[str]) -> set[str]:
        """Ids with which tests are marked and that are no rows."""
        return set().union(*self.ids.values()) - set(known)

    def _cares(self, id: str) -> bool:
        return not self._wanted or id in self._wanted


def show(wanted: Collection[Row], recorder: Recorder, console: Console) -> bool:
    """Print the table; whether every row is fine."""
    table = Table(title="Faults", show_lines=True)
    for head in ("id", "what is tried", "tests", "result"):
        table.add_column(head, overflow="fold", no_wrap=head == "id")
    fine = True
    for row in wanted:
        found = recorder.outcomes(row.id)
        text, good = judge(row, found.values())
        fine = fine and good
        table.add_row(row.id, row.scenario, "\n".join(_names(found)), text, style="" if good else "bold red")
    console.print(table, markup=False)
    return fine


def _names(found: Mapping[str, Outcome]) -> list[str]:
    """Tests without their parameters, each once, in order."""
    return list(dict.fromkeys(test.removeprefix("tests/").partition("[")[0] for test in found))


def main(chosen: Collection[str]) -> int:
    known = rows(PAGE.read_text())
    if unheard := set(chosen) - set(known):
        print(f"no such row in docs/faults.md: {', '.join(sorted(unheard))}", file=sys.stderr)
        return 2
    recorder = Recorder(chosen)
    status = pytest.main(["--quiet"], plugins=[recorder])
    width = None if sys.stdout.isatty() else 160
    fine = show(
        [row for row in known.values() if row.id in (chosen or known)], recorder, Console(width=width)
    )
    unknown = recorder.unknown(known)
    if unknown:
        print(f"tests are marked with ids that docs/faults.md lacks: {', '.join(sorted(unknown))}")
    ran = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return int(unknown != set() or not fine or not ran)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
