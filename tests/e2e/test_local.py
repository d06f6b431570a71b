"""`splitwise` with the real router and machines: a file becomes processes that serve, and nothing stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from deployments import deployment
from local import demo, rundir
from local.cli import main
from local.control import chosen

pytestmark = pytest.mark.slow
SECONDS = 60.0


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, name: str, model: Path, pools: dict[str, Any]) -> Path:
    document = deployment(
        model={"name": "tiny", "source": {"path": str(model)}}, engine={"name": "reference"}, pools=pools
    )
    document["metadata"]["name"] = name.removesuffix(".yaml")
    (folder / name).write_text(yaml.safe_dump(document))
    return folder / name


def test_the_demonstration_proves_that_split_equals_unsplit(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ROUNDS", ((("one", 6),), (("two " * 200, 8), ("three", 8))))
    small = {"kvCache": {"memory": "16Mi"}}
    write(tmp_path, "local.yaml", model, {"prompt": small | {"replicas": 2}, "token": small})
    write(tmp_path, "unsplit.yaml", model, {"mixed": small})
    status = demo.demo(tmp_path, console=Console(width=200))
    said = capsys.readouterr().out
    assert status == 0, said
    assert "✓ 3 answers, 22 tokens" in said
    assert "layer by layer behind" in said
    assert "prompt-1 → token-0" in said
    assert "mixed-0 alone" in said
    assert list(rundir.home().iterdir()) == []


def test_a_served_file_answers_heals_and_ends(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "tiny.yaml", model, {"prompt": {}, "token": {}})
    command = [sys.executable, "-c", "import sys; from local.cli import main; sys.exit(main())"]
    with subprocess.Popen(
        [*command, "up", str(file), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as up:
        try:
            assert up.stdout is not None
            assert any("Ctrl-C" in line for line in up.stdout)
            assert main(["chat", "why?", "--max-tokens", "5"]) == 0
            answer = capsys.readouterr().out
            (lost,) = (p for p in chosen(None).programs if p.role == "token")
            os.kill(lost.pid, signal.SIGKILL)
            assert "killed by SIGKILL" in up.stdout.readline()
            assert main(["chat", "why?", "--max-tokens", "5"]) == 0
            assert capsys.readouterr().out == answer
            assert main(["down"]) == 0
            assert up.wait(SECONDS) == 0
        finally:
            up.kill()
    assert list(rundir.home().iterdir()) == []
