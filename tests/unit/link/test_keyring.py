"""Keys in files that are replaced while peers run: who still finds whom, and who never gets in."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from runtime.link import Connection, Hello, Keyring, LinkError, Listener, dial, listen

OLD, NEW, OTHER = "old" * 12, "new" * 12, "else" * 9


class Note(Struct, frozen=True, tag="note"):
    text: str


def hello(name: str) -> Hello:
    return Hello(kind="machine", name=name, instance="1", host="h")


class Quiet:
    def received(self, connection: Connection, message: Any) -> None: ...
    def closed(self, connection: Connection, reason: str) -> None: ...


def accept(caller: Hello) -> tuple[Any, Callable[[Connection], Quiet]]:
    return Note, lambda connection: Quiet()


class Mount:
    """A folder as the kubelet mounts a Secret: the file is a link through ..data, which is swapped whole."""

    def __init__(self, folder: Path, *keys: str) -> None:
        self._folder = folder
        self._version = 0
        folder.mkdir()
        self.replace(*keys)
        self.file = folder / "secret"
        self.file.symlink_to("..data/secret")

    def replace(self, *keys: str) -> None:
        self._version += 1
        version = self._folder / f"..{self._version}"
        version.mkdir()
        (version / "secret").write_text("\n".join(keys))
        fresh = self._folder / "..data_tmp"
        fresh.symlink_to(version.name)
        fresh.rename(self._folder / "..data")


@pytest.fixture
def theirs(tmp_path: Path) -> Mount:
    return Mount(tmp_path / "theirs", OLD)


@pytest.fixture
async def listener(theirs: Mount) -> AsyncIterator[Listener]:
    listener = await listen(
        "127.0.0.1:0", hello=lambda _: hello("b"), secret=Keyring(theirs.file), accept=accept
    )
    yield listener
    await listener.close()


async def call(listener: Listener, keyring: Keyring) -> Connection:
    return await dial(
        listener.address, hello=hello("a"), secret=keyring, inbound=Note, handler=Quiet(), timeout=5.0
    )


async def meets(listener: Listener, keyring: Keyring) -> bool:
    """Whether a call with these keys comes through; the connection is closed again."""
    try:
        connection = await call(listener, keyring)
    except LinkError as error:
        if "does not know our secret" not in str(error):
            raise
        return False
    connection.close("seen")
    await connection.wait_closed()
    return True


ROTATION: Sequence[tuple[str, ...]] = ((OLD,), (OLD, NEW), (NEW, OLD), (NEW,))


@pytest.mark.parametrize("step", range(len(ROTATION) - 1))
async def test_files_one_step_apart_agree_whoever_calls(
    step: int, theirs: Mount, listener: Listener, tmp_path: Path
) -> None:
    mine = Mount(tmp_path / "mine", OLD)
    keyring = Keyring(mine.file)
    for a, b in ((step, step), (step, step + 1), (step + 1, step), (step + 1, step + 1)):
        mine.replace(*ROTATION[a])
        theirs.replace(*ROTATION[b])
        assert await meets(listener, keyring), (a, b)


async def test_files_that_skip_a_step_do_not_agree(theirs: Mount, listener: Listener, tmp_path: Path) -> None:
    """Why every step waits for the one before: the listener shows a key that the caller has not got yet."""
    keyring = Keyring(Mount(tmp_path / "mine", *ROTATION[0]).file)
    theirs.replace(*ROTATION[2])
    assert not await meets(listener, keyring)


async def test_an_unknown_key_is_refused_and_a_dropped_one_too(
    theirs: Mount, listener: Listener, tmp_path: Path
) -> None:
    stranger, late = (Keyring(Mount(tmp_path / key[:3], key).file) for key in (OTHER, OLD))
    theirs.replace(OLD, NEW)
    assert not await meets(listener, stranger)
    assert await meets(listener, late)
    theirs.replace(NEW)
    assert not await meets(listener, late)


async def test_a_refused_caller_gets_in_once_its_own_file_is_replaced(
    theirs: Mount, listener: Listener, tmp_path: Path
) -> None:
    mine = Mount(tmp_path / "mine", OLD)
    keyring = Keyring(mine.file)
    theirs.replace(NEW)
    assert not await meets(listener, keyring)
    mine.replace(NEW)
    assert await meets(listener, keyring)


async def test_open_connections_outlive_their_key(theirs: Mount, listener: Listener, tmp_path: Path) -> None:
    mine = Mount(tmp_path / "mine", OLD)
    connection = await call(listener, Keyring(mine.file))
    for mount in (mine, theirs):
        mount.replace(NEW)
    assert await meets(listener, Keyring(mine.file))
    assert not connection.is_closed
    connection.close("done")
    await connection.wait_closed()


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    theirs: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    keyring = Keyring(theirs.file)
    with caplog.at_level(logging.WARNING):
        for keys in (("tiny",), (), ("tiny",)):
            theirs.replace(*keys)
            assert keyring.keys() == keyring.keys() == (OLD.encode(),)
    assert len(caplog.records) == 3
    told = [str(vars(record)) for record in caplog.records]
    assert all("write at least 32" in text for text in told)
    assert not any(OLD in text or "tiny" in text for text in told)
    theirs.replace(NEW, OLD)
    assert keyring.keys() == (NEW.encode(), OLD.encode())


@pytest.mark.parametrize("text", ["short", f"{OLD}\nshort", "", "\n\n"])
def test_short_keys_are_refused_with_what_to_write(text: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(text)
    with pytest.raises(ValueError, match="write at least 32"):
        Keyring(file)
    with pytest.raises(ValueError, match="No such file"):
        Keyring(tmp_path / "missing")
