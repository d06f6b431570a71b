"""Which vLLM this package was proven on, and what is probed instead of guessed from a version number.

Minor releases of vLLM come every few weeks and some change behaviour without changing a signature, so
outside the window below nothing is promised: `check` refuses, unless the user insists.
"""

from collections.abc import Iterable
from typing import Any

OLDEST, NEWEST = (0, 27), (0, 32)
OVERRIDE = "--splitwise-any-vllm"

SCHEDULER = ("waiting", "running", "policy", "max_num_running_reqs", "max_num_scheduled_tokens")
"""What the prompt batching touches on vLLM's scheduler."""

DELIVERY = ("_update_from_kv_xfer_finished",)
"""What lets news of the KV link into a step before it is scheduled, instead of behind it."""

HAND_OVER = ("prompt_token_ids", "_all_token_ids")
"""What is written on a request to continue behind a first token that another machine sampled."""


def check(version: str, *, insist: bool = False) -> None:
    """Raises ValueError for a vLLM outside the window, unless the user insists."""
    parts = version.split(".")
    try:
        minor = (int(parts[0]), int(parts[1]))
    except (IndexError, ValueError):
        minor = (0, 0)
    if OLDEST <= minor <= NEWEST or insist:
        return
    raise ValueError(
        f"vLLM {version} is outside the supported window {_dotted(OLDEST)} to {_dotted(NEWEST)}: "
        f"install one of those, or add {OVERRIDE} to the engine's arguments to try it all the same"
    )


def missing(thing: Any, names: Iterable[str]) -> list[str]:
    """Which of these attributes this version lacks."""
    return [name for name in names if not hasattr(thing, name)]


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
