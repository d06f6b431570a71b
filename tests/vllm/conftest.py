"""Real vLLM engines and fleets over a tiny model in the shapes that vLLM's CPU kernels take.

Everything in this folder needs the vLLM environment (`make test-vllm`) and is skipped elsewhere.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tiny_llama
from fleet import Fleet
from runtime.config import KvSettings, LinkSettings, MachineSettings, ModelSettings
from runtime.engine import EngineLimits
from tests.vllm.loopback import Loopback

SHAPE = tiny_llama.Shape(hidden=128, heads=4, kv_heads=2, layers=4)
"""Heads of 32, the smallest that vLLM's CPU attention knows."""

KV_BYTES = 40 * 2**20
START_SECONDS = 300.0
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.vllm)
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # vLLM and torch warn about themselves
        if missing:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed here; make test-vllm runs this"))


class VllmFleet(Fleet):
    """A fleet of vLLM machines; they need longer to start. `patience`: seconds until a silent one is lost."""

    def __init__(
        self, folder: Path, model: Path, machines: Mapping[str, str], *, patience: float = 60.0, **more: Any
    ) -> None:
        link = {"link": {"secret_file": str(folder / "secret"), "dead_after_seconds": patience}}
        machine = {"engine": "vllm", "sequences": 32} | link | dict(more.pop("machine", {}))
        super().__init__(folder, model, machines, machine=machine, router=link, kv_bytes=KV_BYTES, **more)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        super().wait_ready(seconds)


MakeFleet = Callable[..., Fleet]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.make(tmp_path_factory.mktemp("model") / "tiny", SHAPE)


@pytest.fixture(scope="session")
def make_fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeFleet:
    """Fleets that a test starts and ends itself."""

    def make(machines: Mapping[str, str], **more: Any) -> Fleet:
        return VllmFleet(tmp_path_factory.mktemp("fleet"), more.pop("model", model), machines, **more)

    return make


@pytest.fixture(scope="session")
def unsplit(make_fleet: MakeFleet) -> Iterator[Fleet]:
    """One vLLM machine that does both phases: what a split fleet must equal."""
    with make_fleet({"mixed-0": "mixed"}) as fleet:
        yield fleet


@pytest.fixture(scope="session", params=["shm", "tcp"])
def split(request: pytest.FixtureRequest, make_fleet: MakeFleet) -> Iterator[Fleet]:
    """A prompt machine and a token machine; prompts from 64 tokens on go layer by layer."""
    machines = {"prompt-0": "prompt", "token-0": "token"}
    with make_fleet(machines, layerwise_above=64, transport=request.param) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def loopback(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """One engine in this process; vLLM allows no second one."""
    from runtime.engine.vllm import open_vllm

    settings = MachineSettings(
        name="loopback",
        role="mixed",
        listen="unix:/unused",
        engine="vllm",
        model=ModelSettings(name="tiny", path=model),
        link=LinkSettings(secret_file=Path("/unused")),
        kv=KvSettings(memory_bytes=KV_BYTES, block_tokens=32),
        sequences=32,
        cache_dir=tmp_path_factory.mktemp("cache"),
    )
    engine, pool = open_vllm(settings, EngineLimits(settings.prompt_batch_tokens, settings.sequences))
    yield Loopback(engine, pool)
    engine.close()
    pool.close()
