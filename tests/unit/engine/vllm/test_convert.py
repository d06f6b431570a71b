"""GGUF files as folders: every tensor as the reference engine reads it, made once."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

import tiny_gguf
import tiny_llama
from runtime.engine.reference.gguf_file import GgufFile
from runtime.engine.reference.huggingface import HuggingFaceFolder
from runtime.engine.vllm.convert import converted

SHAPES = {"llama": tiny_llama.LLAMA, "untied": tiny_llama.UNTIED, "qwen2": tiny_llama.QWEN2}


@pytest.mark.parametrize("name", SHAPES)
def test_the_folder_is_the_same_model(tmp_path: Path, name: str) -> None:
    path = tiny_gguf.make(tmp_path / "model.gguf", SHAPES[name])
    source = GgufFile(path)
    folder = HuggingFaceFolder(converted(path, tmp_path / "cache"))
    ours, theirs = folder.architecture, source.architecture
    assert ours.inverse_frequencies == pytest.approx(theirs.inverse_frequencies)
    for field in (
        "family",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "vocabulary",
        "tied",
        "end_tokens",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field
    for tensor in theirs.shapes():
        np.testing.assert_array_equal(folder.tensor(tensor), source.tensor(tensor))


def test_quantised_blocks_are_dequantised(tmp_path: Path) -> None:
    path = tiny_gguf.make(tmp_path / "model.gguf", quantised=gguf.GGMLQuantizationType.Q4_1)
    folder = converted(path, tmp_path / "cache")
    name = "model.layers.1.mlp.up_proj.weight"
    np.testing.assert_array_equal(HuggingFaceFolder(folder).tensor(name), GgufFile(path).tensor(name))
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "float32"


def test_it_is_made_once_with_progress(tmp_path: Path) -> None:
    path = tiny_gguf.make(tmp_path / "model.gguf")
    steps: list[tuple[int, int]] = []
    first = converted(path, tmp_path / "cache", lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] > 0
    assert steps == sorted(steps)
    del steps[:]
    assert converted(path, tmp_path / "cache", lambda done, total: steps.append((done, total))) == first
    assert steps == []
    assert not list(first.parent.glob("*.partial"))


def test_what_a_crash_left_is_made_anew(tmp_path: Path) -> None:
    path = tiny_gguf.make(tmp_path / "model.gguf")
    folder = converted(path, tmp_path / "cache")
    half = folder.with_suffix(".partial")
    folder.rename(half)
    (half / "model-0.safetensors").write_bytes(b"half")
    assert converted(path, tmp_path / "cache") == folder
    assert (folder / "model-0.safetensors").stat().st_size > 1000


def test_scaled_rotary_frequencies_are_refused(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.array([1, 1, 2, 2, 4, 4, 8, 8], np.float32)}
    path = tiny_gguf.make(tmp_path / "model.gguf", extra=factors)
    with pytest.raises(ValueError, match="scaled rotary frequencies"):
        converted(path, tmp_path / "cache")


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a GGUF file"):
        converted(path, tmp_path / "cache")
