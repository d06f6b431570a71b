"""One BLAS thread per process.

Machines share a host, and OpenBLAS threads spin while they wait for each other: two threads on a busy host
were measured 10 to 50 times slower than one. The environment only counts before NumPy is imported, so a
library that is loaded already is told directly.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
_SPELLINGS = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)


def use_one_thread() -> None:
    """From now on matrix products of this process, and of processes it starts, use one thread."""
    os.environ.update(dict.fromkeys(_VARIABLES, "1"))
    for function in _functions("set"):
        function(1)


def threads() -> int | None:
    """How many threads the loaded BLAS would use; None if it is one we cannot ask."""
    return max((function() for function in _functions("get")), default=None)


def _functions(verb: str) -> Iterator["ctypes._NamedFuncPointer"]:
    for path in _loaded_libraries():
        library = ctypes.CDLL(path)
        for spelling in _SPELLINGS:
            with contextlib.suppress(AttributeError):
                yield getattr(library, spelling.format(verb))
                break


def _loaded_libraries() -> list[str]:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "openblas" in line}
    return sorted(path for path in paths if Path(path).is_file())
