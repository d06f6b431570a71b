"""Writes vectors.json: what an independent implementation says about the tiny models.

Needs torch and transformers, which the project itself doesn't; run it in an environment of their own:

    uv venv hf && uv pip install --python hf torch transformers safetensors numpy
    hf/bin/python tests/unit/engine/make_vectors.py

Per model: a prompt, the logits behind its last token (the first 64), and the greedy tokens that follow.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

import tiny_llama  # noqa: E402

LOGITS = 64
TOKENS = 24
MODELS = {
    "llama": (tiny_llama.LLAMA, 40),
    "untied": (tiny_llama.UNTIED, 33),
    "qwen2": (tiny_llama.QWEN2, 40),
    "llama3": (tiny_llama.LLAMA3, 300),  # beyond the original context, where the scaling shows
}


def prompt(length: int) -> list[int]:
    """Any fixed ids; specials are left out."""
    return [3 + (7 * place * place + 11 * place) % 381 for place in range(length)]


def vector(shape: tiny_llama.Shape, length: int) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM  # type: ignore[import-not-found,unused-ignore]

    with tempfile.TemporaryDirectory() as folder:
        path = tiny_llama.make(Path(folder), shape)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    tokens = prompt(length)
    with torch.no_grad():
        for step in range(TOKENS):
            logits = model(torch.tensor([tokens])).logits[0, -1]
            if step == 0:
                first = [round(float(value), 5) for value in logits[:LOGITS]]
            tokens = [*tokens, int(logits.argmax())]
    return {"prompt": tokens[:length], "logits": first, "greedy": tokens[length:]}


if __name__ == "__main__":
    made = {name: vector(*arguments) for name, arguments in MODELS.items()}
    rows = ",\n".join(f'"{name}": {json.dumps(row)}' for name, row in made.items())
    (HERE / "vectors.json").write_text("{" + rows + "}\n")
