"""The run folder: private, owned by one, cleared of what a killed owner left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local import rundir
from local.child import start_time
from local.rundir import (
    ProgramRecord,
    Record,
    RunFailed,
    home,
    is_owned,
    owned,
    read_record,
    running,
    write_record,
)


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def record(folder: Path, pid: int, started: int) -> Record:
    program = ProgramRecord(name="prompt-0", role="prompt", log=folder / "log", pid=pid, started=started)
    return Record(
        deployment="local", model="m", endpoint="http://x", pid=os.getpid(), started=1, programs=(program,)
    )


def test_only_the_user_can_open_it() -> None:
    with owned("local") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        rundir.write_secret(folder / "secret")
        assert (folder / "secret").stat().st_mode & 0o777 == 0o600
        assert len((folder / "secret").read_bytes()) >= 32
        with pytest.raises(FileExistsError):
            rundir.write_secret(folder / "secret")
    assert home().stat().st_mode & 0o777 == 0o700


def test_secrets_differ(tmp_path: Path) -> None:
    rundir.write_secret(tmp_path / "a")
    rundir.write_secret(tmp_path / "b")
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


def test_a_second_owner_is_refused() -> None:
    with owned("local"):
        assert is_owned("local")
        with pytest.raises(RunFailed, match="splitwise down local"), owned("local"):
            pass
        with owned("other"):
            pass
    assert not is_owned("local")
    with owned("local"):
        pass


def _fails_after_writing(path: Path) -> None:
    path.touch()
    raise ZeroDivisionError


def test_it_goes_with_its_owner_but_stays_after_an_error() -> None:
    with owned("local") as folder:
        (folder / "prompt-0.log").touch()
    assert not folder.exists()
    with pytest.raises(ZeroDivisionError), owned("local") as folder:
        _fails_after_writing(folder / "prompt-0.log")
    assert (folder / "prompt-0.log").exists()
    with owned("local") as folder:
        assert list(folder.iterdir()) == []


def test_processes_of_a_killed_owner_are_ended() -> None:
    left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    folder = home() / "local"
    folder.mkdir()
    write_record(folder, record(folder, left.pid, start_time(left.pid)))
    with owned("local"):
        assert left.wait(10) == -signal.SIGKILL


def test_a_process_with_a_reused_number_is_left_alone() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    folder = home() / "local"
    folder.mkdir()
    write_record(folder, record(folder, stranger.pid, start_time(stranger.pid) - 1))
    with owned("local"):
        pass
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait(10)


def test_a_folder_that_others_can_open_is_refused(tmp_path: Path) -> None:
    (tmp_path / "splitwise").mkdir(mode=0o755)
    (tmp_path / "splitwise").chmod(0o755)
    with pytest.raises(RunFailed, match="only you"):
        home()


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "splitwise").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFailed, match="only you"):
        home()


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with pytest.raises(RunFailed, match="XDG_RUNTIME_DIR"), owned("local"):
        pass


def test_without_a_runtime_folder_it_is_under_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert home() == tmp_path / f"splitwise-{os.getuid()}"


def test_only_what_is_owned_counts_as_running() -> None:
    assert running() == []
    with owned("local") as folder:
        assert running() == []
        written = record(folder, 1, 1)
        write_record(folder, written)
        assert running() == [written]
    folder.mkdir()
    write_record(folder, written)
    assert running() == []
    assert read_record(folder) == written
    (folder / "record.json").write_text("{")
    assert read_record(folder) is None
