"""The command as users run it, with stand-ins for router and machines."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import yaml

import stand_ins
from deployments import deployment
from local.cli import main
from local.rundir import home, running

SECONDS = 60.0


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "weights.gguf").touch()
    document = deployment(
        model={"name": "tiny", "source": {"path": "weights.gguf"}},
        engine={"name": "reference"},
        pools={"mixed": {}},
    )
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


class Command:
    """`splitwise` as a process."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, stand_ins.__file__, "splitwise", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._timer = threading.Timer(SECONDS, self.process.kill)
        self._timer.start()

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def until(self, text: str) -> str:
        """Output up to and with the line that holds the text."""
        seen = ""
        for line in self.out:
            seen += line
            if text in line:
                return seen
        raise AssertionError(f"ended without {text!r}: {seen}")

    def end(self) -> int:
        """Its exit status, once it has ended."""
        if not self.out.closed:
            self.process.communicate(timeout=SECONDS)
        self._timer.cancel()
        self._timer.join()
        return self.process.returncode


@pytest.fixture
def up(file: Path) -> Iterator[Command]:
    command = Command("up", str(file), "--port", "0")
    yield command
    command.process.kill()
    command.end()


def test_up_prints_the_endpoint_and_a_command_then_ctrl_c_ends_it(up: Command) -> None:
    text = up.until("Ctrl-C")
    assert "ready" in text
    assert "/v1/chat/completions -H 'Content-Type: application/json'" in text
    up.process.send_signal(signal.SIGINT)
    assert up.end() == 0
    assert list(home().iterdir()) == []


def test_ps_logs_and_down(up: Command, capsys: pytest.CaptureFixture[str]) -> None:
    up.until("Ctrl-C")
    assert main(["ps"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    programs = running()[0].programs
    assert [line[:7] for line in lines[1:]] == [
        ["tiny", p.name, p.role, str(p.pid), "ready", "0", p.observe] for p in programs
    ]
    assert main(["logs", "mixed-0"]) == 0
    assert capsys.readouterr().out == f"serving {programs[0].observe}\n"
    assert main(["logs"]) == 0
    assert f"router: serving {programs[1].observe}\n" in capsys.readouterr().out
    assert main(["logs", "token-7"]) == 1
    assert "mixed-0, router" in capsys.readouterr().err
    assert main(["down"]) == 0
    assert up.end() == 0
    assert running() == []


def test_logs_followed_end_with_the_deployment(up: Command) -> None:
    up.until("Ctrl-C")
    follower = Command("logs", "-f")
    follower.until("mixed-0: serving")
    up.process.send_signal(signal.SIGTERM)
    assert up.end() == 0
    assert follower.end() == 0


def test_what_a_killed_up_left_is_gone_and_the_next_one_starts(up: Command, file: Path) -> None:
    up.until("Ctrl-C")
    left = running()[0]
    descriptors = [os.pidfd_open(program.pid) for program in left.programs]
    up.process.kill()
    up.end()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], SECONDS)[0]
        os.close(descriptor)
    assert running() == []
    again = Command("up", str(file), "--port", "0")
    again.until("Ctrl-C")
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 0


def test_a_second_up_is_refused(up: Command, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up.until("Ctrl-C")
    assert main(["up", str(file), "--port", "0"]) == 1
    assert "splitwise down tiny" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "soon"])
def test_a_deadline_that_is_no_time_is_refused(
    seconds: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["up", str(file), "--deadline", seconds])
    assert caught.value.code == 2
    assert "--deadline" in capsys.readouterr().err


def test_an_occupied_port_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["up", str(file), "--port", port]) == 1
    error = capsys.readouterr().err
    assert port in error
    assert "--port" in error


def test_a_wrong_file_lists_its_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(deployment(desing="HH", kvTransfer={"transport": "rdma"})))
    assert main(["up", str(path)]) == 2
    error = capsys.readouterr().err
    assert "2 problems" in error
    assert "did you mean design?" in error


def test_absent_weights_are_a_sentence(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", str(file), "--port", "0", "--model", "/no/such/model"]) == 1
    assert "no weights at /no/such/model" in capsys.readouterr().err


def test_commands_without_a_deployment_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    assert "nothing is up" in capsys.readouterr().out
    for command in ("down", "logs", "chat"):
        assert main([command]) == 1
        assert "splitwise up FILE" in capsys.readouterr().err


def test_without_a_command_the_use_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
