"""GGUF files give the model that safetensors give."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import tiny_gguf
import tiny_llama
from runtime.engine.reference.architecture import UnusableModel
from runtime.engine.reference.checkpoint import prepare
from runtime.engine.reference.gguf_file import GgufFile
from runtime.engine.reference.weights import Weights

SHAPES = [tiny_llama.LLAMA, tiny_llama.QWEN2, tiny_llama.UNTIED]


def names(weights: Weights) -> list[str]:
    shape = weights.architecture
    parts = ["norm1", "qkv", "out", "norm2", "gate_up", "down", *(["qkv_bias"] if shape.qkv_bias else [])]
    top = ["head", "norm", *([] if shape.tied else ["embed"])]
    return top + [f"{layer}.{part}" for layer in range(shape.layers) for part in parts]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_weights_as_from_safetensors(tmp_path: Path, shape: tiny_llama.Shape) -> None:
    ours = prepare(tiny_gguf.make(tmp_path / "model.gguf", shape), tmp_path / "cache")
    theirs = prepare(tiny_llama.make(tmp_path / "folder", shape), tmp_path / "cache")
    assert ours.digest != theirs.digest
    assert ours.architecture.inverse_frequencies == pytest.approx(theirs.architecture.inverse_frequencies)
    for field in ours.architecture.__struct_fields__:
        if field not in ("inverse_frequencies", "norm_eps"):  # these are float32 in the file
            assert getattr(ours.architecture, field) == getattr(theirs.architecture, field)
    for name in names(theirs):
        np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    ("kind", "error"), [(gguf.GGMLQuantizationType.Q8_0, 0.02), (gguf.GGMLQuantizationType.BF16, 0.01)]
)
def test_quantised_weights_are_near(tmp_path: Path, kind: gguf.GGMLQuantizationType, error: float) -> None:
    ours = prepare(tiny_gguf.make(tmp_path / "model.gguf", quantised=kind), tmp_path / "cache")
    theirs = prepare(tiny_llama.make(tmp_path / "folder"), tmp_path / "cache")
    for name in names(theirs):
        assert np.abs(ours[name] - theirs[name]).max() < error
    assert not np.array_equal(ours["0.qkv"], theirs["0.qkv"])


def test_llama3_frequencies_are_spelled_out_in_the_file(tmp_path: Path) -> None:
    folder = tiny_llama.make(tmp_path / "folder", tiny_llama.LLAMA3)
    expected = prepare(folder, tmp_path / "cache").architecture.inverse_frequencies
    plain = [500_000.0 ** (-pair / 8) for pair in range(8)]
    factors = np.array([one / other for one, other in zip(plain, expected, strict=True)], np.float32)
    path = tiny_gguf.make(tmp_path / "model.gguf", tiny_llama.LLAMA3, extra={"rope_freqs.weight": factors})
    assert factors.max() > 7
    found = prepare(path, tmp_path / "cache").architecture.inverse_frequencies
    assert found == pytest.approx(expected, rel=1e-6)


def test_both_kinds_of_end_tokens(tmp_path: Path) -> None:
    path = tiny_gguf.make(tmp_path / "model.gguf", facts={"tokenizer.ggml.eot_token_id": 5})
    assert GgufFile(path).architecture.end_tokens == (tiny_llama.IM_END, 5)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"architecture": "gemma"}, "architecture gemma: the reference engine serves llama, qwen2"),
        ({"facts": {"{}.expert_count": 8}}, "expert_count"),
        ({"facts": {"{}.attention.sliding_window": 4096}}, "sliding_window"),
        ({"facts": {"{}.rope.scaling.type": "yarn"}}, "rope scaling yarn"),
        ({"without": "token_embd.weight"}, "token_embd.weight is missing"),
        ({"without": "blk.1.ffn_up.weight"}, r"lacks model\.layers\.1\.mlp\.up_proj\.weight"),
        ({"extra": {"blk.0.attn_q.bias": np.ones(64, np.float32)}}, "does not know"),
        ({"extra": {"blk.0.oddity.weight": np.ones(64, np.float32)}}, r"blk\.0\.oddity\.weight"),
    ],
)
def test_what_it_cannot_serve_it_refuses(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    path = tiny_gguf.make(tmp_path / "model.gguf", **how)
    with pytest.raises(UnusableModel, match=message):
        prepare(path, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.partial"))


@pytest.mark.parametrize("kept", [0, 3, 100, 20_000])
def test_a_file_cut_short(tmp_path: Path, kept: int) -> None:
    path = tiny_gguf.make(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UnusableModel, match="not a GGUF file, or cut short"):
        prepare(path, tmp_path / "cache")
