"""What the pages say can be typed and followed: commands, targets, links, snippets."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from controlplane.api import parse
from local.cli import parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = [page for page in PAGES if "reference" not in page.parts]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each indented command line, comments left out."""
    for line in page.read_text().splitlines():
        if re.match(r" {4}(\.venv/bin/splitwise|make) ", line):
            yield shlex.split(line, comments=True)


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def targets() -> set[str]:
    makefiles = [ROOT / "Makefile", *(ROOT / "tools").glob("*.mk")]
    return {name for file in makefiles for name in re.findall(r"^([a-z-]+):", file.read_text(), re.MULTILINE)}


@pytest.mark.fault("INSTALL-4")
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_can_be_typed(page: Path) -> None:
    for program, *arguments in commands(page):
        if program == "make":
            assert {word for word in arguments if "=" not in word} <= targets()
        else:
            parser().parse_args(arguments)


@pytest.mark.fault("INSTALL-4")
def test_files_named_in_commands_are_there() -> None:
    files = [word for page in GUIDES for words in commands(page) for word in words if word.endswith(".yaml")]
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []


@pytest.mark.fault("INSTALL-4")
def test_objects_in_the_readme_are_valid() -> None:
    (document,) = fenced(ROOT / "README.md", "yaml")
    assert parse(yaml.safe_load(document)).spec.design == "HHcap"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "quickstart.md"], ids=lambda p: p.stem)
def test_python_in_the_pages_compiles(page: Path) -> None:
    for snippet in fenced(page, "python"):
        compile(snippet, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_make_lists_every_documented_target() -> None:
    listed = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20
    )
    for name in ("setup", "demo", "test", "test-fast", "check", "fmt", "lock", "clean"):
        assert re.search(rf"\b{name}\b", listed.stdout)
