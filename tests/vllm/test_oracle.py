"""Two engines that share no line of computing code agree on the tokens."""

import random
from pathlib import Path

import pytest

from runtime.config import KvSettings, LinkSettings, MachineSettings, ModelSettings
from runtime.engine import Engine, Sampled, Work
from runtime.machine.engines import open_engine
from runtime.wire import Sampling
from tests.vllm.loopback import Loopback


def ids(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 384), k=count)


@pytest.fixture(scope="module")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    settings = MachineSettings(
        name="oracle",
        role="mixed",
        listen="unix:/unused",
        model=ModelSettings(name="tiny", path=model),
        link=LinkSettings(secret_file=Path("/unused")),
        kv=KvSettings(memory_bytes=8 * 2**20),
        cache_dir=tmp_path_factory.mktemp("oracle"),
    )
    return open_engine(settings)[0]


def answer(engine: Engine, prompt: list[int], sampling: Sampling) -> list[int]:
    engine.submit(Work("asked", "whole", list(prompt), sampling))
    told: list[int] = []
    while engine.busy():
        told += [token.id for news in engine.step() if isinstance(news, Sampled) for token in news.tokens]
    return told


@pytest.mark.parametrize("count", [1, 7, 32, 100, 421])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(40, 1, temperature=0, ignore_eos=True),
        Sampling(40, 5, ignore_eos=True),
        Sampling(40, 6, top_p=0.8, frequency_penalty=0.5),
        Sampling(40, 7, temperature=0, repetition_penalty=1.3, min_tokens=30),
    ],
    ids=["greedy", "drawn", "nucleus", "penalties"],
)
def test_vllm_and_the_reference_agree(
    loopback: Loopback, reference: Engine, count: int, sampling: Sampling
) -> None:
    """Drawn tokens as well, as long as the two engines' rounding does not lift a draw over a boundary."""
    prompt = ids(count, count)
    assert loopback.whole(prompt, sampling).ids == answer(reference, prompt, sampling)


def test_they_agree_on_a_long_prompt(loopback: Loopback, reference: Engine) -> None:
    sampling = Sampling(40, 1, temperature=0, ignore_eos=True)
    assert loopback.whole(ids(2049, 3), sampling).ids == answer(reference, ids(2049, 3), sampling)
