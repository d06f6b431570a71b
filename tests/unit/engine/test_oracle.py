"""Agreement with an independent implementation; `make_vectors.py` says how the vectors were made."""

import json
from pathlib import Path

import numpy as np
import pytest

import tiny_llama
from reference_engines import rig, work

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
SHAPES = {
    "llama": tiny_llama.LLAMA,
    "untied": tiny_llama.UNTIED,
    "qwen2": tiny_llama.QWEN2,
    "llama3": tiny_llama.LLAMA3,
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_greedy_tokens_agree(name: str, tmp_path: Path) -> None:
    expected = VECTORS[name]
    model = tiny_llama.make(tmp_path / "model", SHAPES[name])
    ours = rig(model, tmp_path / "cache")
    ours.submit(work(prompt=expected["prompt"], max_tokens=len(expected["greedy"]))).run()
    np.testing.assert_allclose(ours.logits["a", 0][:64], expected["logits"], atol=2e-3)
    assert ours.tokens("a") == expected["greedy"]
