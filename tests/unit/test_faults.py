"""docs/faults.md and the markers of the tests say the same."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import PAGE, Outcome, Row, judge, rows

TESTS = Path(__file__).parents[1]
KNOWN = rows(PAGE.read_text())


def marked() -> Iterator[tuple[str, str]]:
    """Every id in a `mark.fault(...)` of the tests, and where it is."""
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
                for argument in node.args:
                    yield str(ast.literal_eval(argument)), f"{file.relative_to(TESTS)}:{node.lineno}"


def test_every_mark_is_a_row() -> None:
    assert [(id, where) for id, where in marked() if id not in KNOWN] == []


def test_a_row_has_a_test_or_waits_and_never_both() -> None:
    """A row that got its test no longer waits: empty its last column."""
    held = {id for id, _ in marked()}
    assert {id for id, row in KNOWN.items() if not row.waits} == held


def test_every_line_of_the_page_is_read() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line[2].isupper()]
    assert len(lines) == len(KNOWN) > 40


PASSED, FAILED, SKIPPED = Outcome("passed"), Outcome("failed"), Outcome("skipped", "run make tools")


@pytest.mark.parametrize(
    ("waits", "outcomes", "text", "fine"),
    [
        ("", [PASSED, PASSED], "holds", True),
        ("", [PASSED, FAILED, SKIPPED], "FAILED: 1 of 3 tests", False),
        ("", [SKIPPED, SKIPPED], "not run here: run make tools", True),
        ("", [PASSED, SKIPPED], "holds; 1 of 2 tests not run here: run make tools", True),
        ("", [], "NO TEST", False),
        ("GPUs", [], "waits for GPUs", True),
        ("GPUs", [FAILED], "FAILED: 1 of 1 tests", False),
    ],
)
def test_a_row_is_what_its_tests_say(waits: str, outcomes: list[Outcome], text: str, fine: bool) -> None:
    assert judge(Row("KV-1", "tried", "holds", waits), outcomes) == (text, fine)
