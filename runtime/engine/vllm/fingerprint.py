"""Whether two machines hold the same weights, without reading all of them.

The digest covers the configuration whole, and of every weights file its name, its size and pages spread
over it. Two models that differ in any layer differ in some page of it, for training moves all numbers.
"""

import hashlib
from pathlib import Path

_SAMPLES, _PAGE = 256, 4096


def fingerprint(folder: Path) -> str:
    """A digest of a Hugging Face folder; 16 hexadecimal digits. Raises ValueError if there are no weights."""
    total = hashlib.sha256()
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if not weights:
        raise ValueError(f"{folder}: no weights; give a Hugging Face folder or a GGUF file")
    for path in (folder / "config.json", *weights):
        if path.is_file():
            total.update(path.name.encode() + _digest(path))
    return total.hexdigest()[:16]


def _digest(path: Path) -> bytes:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for place in sorted({size * step // _SAMPLES for step in range(_SAMPLES)} | {max(0, size - _PAGE)}):
            file.seek(place)
            digest.update(file.read(_PAGE))
    return digest.digest()
