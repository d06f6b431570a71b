"""A tiny model on disk, and fleets of real processes that serve it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_llama
from fleet import Fleet

SPLIT = {"prompt-0": "prompt", "prompt-1": "prompt", "token-0": "token", "token-1": "token"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.make(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def unsplit(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One machine that does both phases: what every other fleet must equal."""
    with Fleet(tmp_path_factory.mktemp("unsplit"), model, {"mixed-0": "mixed"}) as fleet:
        yield fleet


@pytest.fixture(scope="module", params=["shm-serialized", "shm-layerwise", "tcp-serialized", "tcp-layerwise"])
def split(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two prompt and two token machines, over every transport and in both modes."""
    transport, mode = request.param.split("-")
    with Fleet(
        tmp_path_factory.mktemp(request.param),
        model,
        SPLIT,
        transport=transport,
        layerwise_above=0 if mode == "layerwise" else 1_000_000,
    ) as fleet:
        fleet.transport, fleet.mode = transport, mode  # type: ignore[attr-defined]
        yield fleet
