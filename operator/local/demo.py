"""`splitwise demo`."""

from pathlib import Path

from rich.console import Console


def demo(examples: Path, *, console: Console) -> int:
    raise NotImplementedError
