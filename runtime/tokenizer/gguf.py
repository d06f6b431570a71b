"""The key-value part of a GGUF file, read without its tensors.

The format (ggml's docs/gguf.md): the magic, a version, two counts, then per key its name, a type and a
value; arrays carry their element type and length. Little-endian throughout.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


def read_fields(file: Path, *, wanted: Sequence[str] = ("",)) -> dict[str, Any]:
    """The fields whose name contains one of `wanted`. Raises ValueError if the file isn't GGUF."""
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ValueError("not a GGUF file (and no folder)")
        try:
            version, _, count = _unpack(stream, "IQQ")
            if version not in _VERSIONS:
                raise ValueError(f"GGUF version {version} is not one of {_VERSIONS}")
            fields = ((_string(stream), _value(stream)) for _ in range(count))
            return {key: value for key, value in fields if any(part in key for part in wanted)}
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"the GGUF header is damaged: {error!r}") from error


def _value(stream: BinaryIO) -> Any:
    (kind,) = _unpack(stream, "I")
    if kind == _STRING:
        return _string(stream)
    if kind == _ARRAY:
        return _array(stream)
    return _unpack(stream, _SCALARS[kind])[0]


def _array(stream: BinaryIO) -> list[Any]:
    kind, length = _unpack(stream, "IQ")
    if kind == _STRING:
        return [_string(stream) for _ in range(length)]
    return list(_unpack(stream, f"{length}{_SCALARS[kind]}"))


def _string(stream: BinaryIO) -> str:
    (length,) = _unpack(stream, "Q")
    return stream.read(length).decode("utf-8")


def _unpack(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    form = "<" + form
    return struct.unpack(form, stream.read(struct.calcsize(form)))
