"""Where a Python with vLLM is: this one, or the environment that `make vllm-env` keeps outside the clone."""

import importlib.util
import os
import sys
from pathlib import Path


def python() -> Path:
    """The interpreter to run vLLM machines with. Raises ValueError that says how to get one."""
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    if chosen := os.environ.get("SPLITWISE_VLLM_PYTHON"):
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made = sorted((base / "splitwise-operator" / "venvs").glob("vllm-*/.complete"), key=_age)
    if not made:
        raise ValueError(
            "no Python with vLLM: run `make vllm-env` once (about 5 GB), or name one in SPLITWISE_VLLM_PYTHON"
        )
    return made[-1].parent / "bin" / "python"


def _age(mark: Path) -> float:
    return mark.stat().st_mtime
