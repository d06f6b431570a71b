"""The private folder of a running deployment: one owner at a time, a record of its processes, no left-overs.

A folder is owned by whoever holds the lock on its lock file, which the kernel takes back when the owner
ends, however it ends. The record says what was started, so the next owner can end what a killed one left.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from local.child import Process
from local.wish import Ended

_SOCKET_NAME_LIMIT = 107
_LONGEST_NAME = len("/prompt-999.sock")


class RunFailed(Exception):
    """The deployment cannot run here; the message says why and what to do."""


class AlreadyUp(RunFailed):
    """Another process serves a deployment of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is already up: splitwise down {name} ends it; or change metadata.name")


class ProgramRecord(BaseModel):
    """What is known of one program."""

    model_config = ConfigDict(frozen=True)

    name: str
    role: str
    log: Path
    observe: str = ""
    pid: int = 0
    started: int = 0
    state: str = "starting"
    restarts: int = 0

    @property
    def process(self) -> Process:
        return Process(self.pid, self.started)


class Record(BaseModel):
    """What a supervisor writes down about itself and its programs."""

    model_config = ConfigDict(frozen=True)

    deployment: str
    model: str
    endpoint: str
    pid: int
    started: int
    drain_seconds: float = 0.0
    programs: tuple[ProgramRecord, ...] = ()

    @property
    def supervisor(self) -> Process:
        return Process(self.pid, self.started)


def home() -> Path:
    """The folder of all deployments of this user, private to them. Raises RunFailed if it is not."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime, "splitwise") if runtime else Path(tempfile.gettempdir(), f"splitwise-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RunFailed(f"{path} must be a folder that only you can open; remove it, or set XDG_RUNTIME_DIR")
    return path


@contextlib.contextmanager
def owned(name: str) -> Iterator[Path]:
    """The fresh, empty folder of a deployment, ours until the end of the block.

    What an owner that was killed left behind is ended and removed first. At the end the folder goes; after an
    error it stays for its logs, until the next owner. Raises RunFailed if the deployment is up.
    """
    path = home() / name
    if len(str(path)) + _LONGEST_NAME > _SOCKET_NAME_LIMIT:
        raise RunFailed(f"{path} is too long a path for sockets; set XDG_RUNTIME_DIR to a shorter one")
    path.mkdir(mode=0o700, exist_ok=True)
    with _locked(home() / f"{name}.lock", name):
        _end_leftovers(path)
        shutil.rmtree(path)
        path.mkdir(mode=0o700)
        failed = False
        try:
            yield path
        except Exception as error:
            failed = not isinstance(error, Ended)
            raise
        finally:
            if not failed:
                shutil.rmtree(path)


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """The lock file, locked, and gone at the end; one that its last owner has just removed does not count."""
    while True:
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyUp(name) from None
            if _is_at(path, lock.fileno()):
                try:
                    yield
                finally:
                    path.unlink()
                return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def is_owned(name: str) -> bool:
    """Whether some process holds the deployment's folder now."""
    try:
        with (home() / f"{name}.lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def running() -> list[Record]:
    """The deployments of this user that are up, by name."""
    names = sorted(path.stem for path in home().glob("*.lock"))
    records = (read_record(home() / name) for name in names if is_owned(name))
    return [record for record in records if record]


def write_record(folder: Path, record: Record) -> None:
    """Replace the record in one step."""
    temporary = folder / "record.json.new"
    temporary.write_text(record.model_dump_json(indent=2))
    temporary.replace(folder / "record.json")


def read_record(folder: Path) -> Record | None:
    """The record, or None where there is none that can be read."""
    try:
        return Record.model_validate_json((folder / "record.json").read_bytes())
    except (OSError, ValidationError):
        return None


def write_secret(path: Path) -> None:
    """A new random secret that only we can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))


def _end_leftovers(folder: Path) -> None:
    record = read_record(folder)
    for program in record.programs if record else ():
        program.process.send(signal.SIGKILL)
