"""Prepared weights: one file of aligned float32 tensors and an index, mapped read-only.

Machines of one host map the same file and so share its pages, and a restarted machine has its weights
in milliseconds. Matrices are stored [in, out] and those that are applied together lie side by side:

    head                [hidden, vocabulary]
    embed               [vocabulary, hidden]         only if the output matrix is another
    norm                [hidden]
    <layer>.norm1       [hidden]                     before attention
    <layer>.qkv         [hidden, (heads + 2 kv_heads) * head_dim]
    <layer>.qkv_bias    [(heads + 2 kv_heads) * head_dim]         only with biases
    <layer>.out         [heads * head_dim, hidden]
    <layer>.norm2       [hidden]                     before the feed-forward part
    <layer>.gate_up     [hidden, 2 * intermediate]
    <layer>.down        [intermediate, hidden]
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from runtime.engine.reference.architecture import Architecture, UnusableModel

Float = NDArray[np.float32]
Progress = Callable[[int, int], None]
"""Told (bytes written, bytes to write) while weights are prepared."""

FORMAT = 1
_ALIGNMENT = 64


class Source(Protocol):
    """A model as its author published it; tensors under Hugging Face names, [out, in]."""

    @property
    def architecture(self) -> Architecture: ...
    @property
    def files(self) -> tuple[Path, ...]: ...
    def names(self) -> set[str]: ...
    def tensor(self, name: str) -> Float: ...


class _Entry(Struct, frozen=True):
    offset: int
    shape: tuple[int, ...]


class _Index(Struct, frozen=True):
    format: int
    digest: str
    architecture: Architecture
    bytes: int
    tensors: dict[str, _Entry]


class Weights:
    """Prepared weights in a folder. Raises UnusableModel if the folder isn't whole."""

    def __init__(self, folder: Path) -> None:
        try:
            self._index = msgspec.json.decode((folder / "index.json").read_bytes(), type=_Index)
            self._raw = np.memmap(folder / "weights.bin", dtype=np.uint8, mode="r")
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise UnusableModel(f"{folder}: prepared weights cannot be read ({error})") from error
        if self._index.format != FORMAT or self._raw.nbytes != self._index.bytes:
            raise UnusableModel(f"{folder}: prepared weights are not whole")
        self.architecture = self._index.architecture
        self.digest = self._index.digest

    def __getitem__(self, name: str) -> Float:
        entry = self._index.tensors[name]
        raw = self._raw[entry.offset : entry.offset + 4 * int(np.prod(entry.shape))]
        return np.asarray(raw).view(np.float32).reshape(entry.shape)


def write(folder: Path, source: Source, digest: str, progress: Progress) -> None:
    """Prepare the source's weights in `folder`, which exists and is empty."""
    _check_names(source)
    total = 4 * sum(int(np.prod(shape)) for shape in source.architecture.shapes().values())
    entries: dict[str, _Entry] = {}
    with (folder / "weights.bin").open("wb") as file:
        for name, values in _prepared(source):
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            entries[name] = _Entry(file.tell(), values.shape)
            file.write(np.ascontiguousarray(values).data)
            progress(min(file.tell(), total), total)
        size = file.tell()
    index = _Index(FORMAT, digest, source.architecture, size, entries)
    (folder / "index.json").write_bytes(msgspec.json.encode(index))


def _check_names(source: Source) -> None:
    expected, found = set(source.architecture.shapes()), source.names()
    if missing := sorted(expected - found):
        raise UnusableModel(f"the model lacks {missing[0]} ({len(missing)} tensors are missing)")
    if unknown := sorted(found - expected):
        raise UnusableModel(f"the model has {unknown[0]}, which the reference engine does not know")


def _checked(values: Float, name: str, shape: tuple[int, ...]) -> Float:
    if values.shape != shape:
        raise UnusableModel(f"{name} has shape {values.shape}, the configuration says {shape}")
    return values


def _prepared(source: Source) -> Iterator[tuple[str, Float]]:
    shapes = source.architecture.shapes()

    def read(*names: str) -> Float:
        """The tensors under each other, then turned to [in, out]."""
        return np.concatenate([_checked(source.tensor(name), name, shapes[name]) for name in names]).T

    tied = source.architecture.tied
    yield "head", read("model.embed_tokens.weight" if tied else "lm_head.weight")
    if not tied:
        yield "embed", read("model.embed_tokens.weight").T
    yield "norm", read("model.norm.weight")
    for layer in range(source.architecture.layers):
        at = f"model.layers.{layer}."
        projections = [f"{at}self_attn.{part}_proj" for part in "qkv"]
        yield f"{layer}.norm1", read(at + "input_layernorm.weight")
        yield f"{layer}.qkv", read(*(f"{name}.weight" for name in projections))
        if source.architecture.qkv_bias:
            yield f"{layer}.qkv_bias", read(*(f"{name}.bias" for name in projections))
        yield f"{layer}.out", read(at + "self_attn.o_proj.weight")
        yield f"{layer}.norm2", read(at + "post_attention_layernorm.weight")
        yield f"{layer}.gate_up", read(at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight")
        yield f"{layer}.down", read(at + "mlp.down_proj.weight")
