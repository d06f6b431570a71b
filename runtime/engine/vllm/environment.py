"""Where a Python with vLLM is: this one, or the environment that `make vllm-env` keeps outside the clone."""

import importlib.util
import os
import sys
from pathlib import Path

_RUN = (
    "import runpy, sys; sys.path.append(sys.argv[1]); module = sys.argv[2]; del sys.argv[1:3]; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


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


def command(module: str) -> tuple[str, ...]:
    """How a command line begins that runs one of our modules where vLLM is. Raises ValueError as `python`."""
    chosen = python()
    if chosen == Path(sys.executable):
        return (sys.executable, "-P", "-m", module)
    ours = Path(__file__).parents[3]  # last in the search, so that everything else is that Python's own
    return (str(chosen), "-P", "-c", _RUN, str(ours), module)


def _age(mark: Path) -> float:
    return mark.stat().st_mtime
