"""From a published model to prepared weights, once per host.

    <cache>/weights/<digest>/        prepared weights (see `weights`); appears whole or not at all
    <cache>/weights/<digest>.lock    held while one process prepares them; others wait
    <cache>/stamps/<path digest>     remembers the digest of files that have not changed since

The digest is of the content, so a model that changes under its path is prepared anew, and one model under
two paths once.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from runtime.engine.reference import weights
from runtime.engine.reference.architecture import Architecture, UnusableModel
from runtime.engine.reference.gguf_file import GgufFile
from runtime.engine.reference.huggingface import HuggingFaceFolder
from runtime.engine.reference.weights import Progress, Source, Weights
from runtime.kv_link.layout import Layout

KV_FORMAT = "reference/1 block=[k,v][kv_head][token][dim] rotary=half-split"
_LOCK_SECONDS = 900.0
_POLL_SECONDS = 0.05
_SETTLED_SECONDS = 2.0


def prepare(path: Path, cache_dir: Path | None = None, progress: Progress | None = None) -> Weights:
    """The weights of a Hugging Face folder or GGUF file, prepared in the cache unless they are there already.

    Raises UnusableModel with a sentence if the model cannot be served or the cache not be written."""
    source = source_of(path)
    cache = cache_dir or default_cache()
    digest = digest_of(source, cache)
    folder = cache / "weights" / digest
    try:
        with contextlib.suppress(UnusableModel):
            return Weights(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_suffix(".lock")):
            with contextlib.suppress(UnusableModel):  # another process was faster
                return Weights(folder)
            _write(folder, source, digest, progress or (lambda done, total: None))
        return Weights(folder)
    except OSError as error:
        raise UnusableModel(f"weights cannot be prepared in {folder.parent}: {error.strerror}") from error


def layout_of(
    path: Path,
    *,
    name: str,
    revision: str,
    memory_bytes: int,
    block_tokens: int,
    cache_dir: Path | None = None,
) -> Layout:
    """The KV pool that fits into so many bytes. Its `revision` holds the content of the weights too, so that
    machines with different weights under one name never exchange KV."""
    source = source_of(path)
    cache = cache_dir or default_cache()
    digest = digest_of(source, cache)
    shape = _architecture(source, cache / "weights" / digest)
    block_bytes = 2 * shape.kv_heads * block_tokens * shape.head_dim * 4
    blocks = memory_bytes // (shape.layers * block_bytes)
    if blocks < 1:
        raise UnusableModel(
            f"kv.memory_bytes is {memory_bytes}, but one block of {block_tokens} tokens of {name} takes "
            f"{shape.layers * block_bytes}"
        )
    return Layout(
        model=name,
        revision=pinned(revision, digest),
        format=KV_FORMAT,
        dtype="float32",
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        blocks=blocks,
    )


def check_layout(layout: Layout, prepared: Weights) -> None:
    """Raises UnusableModel unless the layout is one that `layout_of` gave for these weights."""
    shape = prepared.architecture
    ours = (
        KV_FORMAT,
        "float32",
        shape.layers,
        shape.kv_heads,
        shape.head_dim,
        2 * shape.kv_heads * layout.block_tokens * shape.head_dim * 4,
    )
    theirs = (
        layout.format,
        layout.dtype,
        layout.layers,
        layout.kv_heads,
        layout.head_dim,
        layout.block_bytes,
    )
    if ours != theirs or not layout.revision.endswith(pinned("", prepared.digest)):
        raise UnusableModel(f"the KV pool was laid out for another model: {layout}")


def pinned(revision: str, digest: str) -> str:
    """A revision that also names the content of the weights."""
    return f"{revision}+{digest[:16]}"


def source_of(path: Path) -> Source:
    """What lies at `path`. Raises UnusableModel."""
    if path.is_dir():
        return HuggingFaceFolder(path)
    if path.is_file():
        return GgufFile(path)
    raise UnusableModel(f"{path}: no such model; give a Hugging Face folder or a GGUF file")


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "splitwise-operator"


def digest_of(source: Source, cache: Path) -> str:
    """SHA-256 over everything that decides the answers. Files that have not changed are not read again."""
    try:
        files = [path.resolve() for path in source.files]
        state = [_state(path) for path in files]
        stamp = cache / "stamps" / hashlib.sha256("\0".join(map(str, files)).encode()).hexdigest()
        if (known := _stamped(stamp, state)) is not None:
            return known
        digest = _digest(files)
        _remember(stamp, state, digest)  # what changed while it was read no longer has this state
        return digest
    except OSError as error:
        raise UnusableModel(f"{error.filename}: {error.strerror}") from error


def _architecture(source: Source, folder: Path) -> Architecture:
    """From prepared weights if they are there, as large GGUF files take seconds to open."""
    with contextlib.suppress(UnusableModel):
        return Weights(folder).architecture
    return source.architecture


_State = tuple[int, int, int, int]


def _state(path: Path) -> _State:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(files: list[Path]) -> str:
    total = hashlib.sha256(f"format {weights.FORMAT}".encode())
    for path in files:
        with path.open("rb") as file:
            total.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _stamped(stamp: Path, state: list[_State]) -> str | None:
    try:
        seen, digest = msgspec.json.decode(stamp.read_bytes(), type=tuple[list[_State], str])
    except (OSError, msgspec.MsgspecError):
        return None
    return digest if seen == state else None


def _remember(stamp: Path, state: list[_State], digest: str) -> None:
    newest = max(max(mtime, ctime) for _, _, mtime, ctime in state) / 1e9
    if time.time() - newest < _SETTLED_SECONDS:
        return  # a file this young could still change without its times telling
    partial = stamp.with_name(f"{stamp.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # an unwritable cache only means reading the files again
        stamp.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.encode((state, digest)))
        partial.replace(stamp)


def _write(folder: Path, source: Source, digest: str, progress: Progress) -> None:
    """Under the lock, so whatever is left there was left by a process that died."""
    partial = folder.with_suffix(".partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        weights.write(partial, source, digest, progress)
        for path in partial.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process; the kernel lets go when that process ends, however it ends."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UnusableModel(
                        f"{path}: another process has held it for {_LOCK_SECONDS:.0f} s; "
                        "end it or give this machine a cache_dir of its own"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield
