"""Weights are prepared once, whole or not at all, and only if they can be served."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_llama
from reference_engines import HeapPool
from runtime.engine.reference import checkpoint
from runtime.engine.reference.architecture import UnusableModel
from runtime.engine.reference.checkpoint import layout_of, prepare
from runtime.engine.reference.engine import ReferenceEngine
from runtime.kv_link.layout import Layout, differences

Shape = tiny_llama.Shape


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama.make(tmp_path / "model")


def entries(cache: Path) -> list[str]:
    return sorted(path.suffix or "whole" for path in (cache / "weights").iterdir())


def never(done: int, total: int) -> None:
    raise AssertionError("prepared again")


def test_prepared_once_with_progress(model: Path, cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = prepare(model, cache, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 500_000
    again = prepare(model, cache, never)
    np.testing.assert_array_equal(first["0.qkv"], again["0.qkv"])
    assert entries(cache) == [".lock", "whole"]


def test_prepared_weights_cannot_be_written(model: Path, cache: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        prepare(model, cache)["head"][0, 0] = 1


def test_one_model_under_two_paths_is_prepared_once(tmp_path: Path, model: Path, cache: Path) -> None:
    prepare(model, cache)
    assert prepare(tiny_llama.make(tmp_path / "copy"), cache, never).architecture.layers == 4


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors"])
def test_a_model_that_changes_is_prepared_anew(model: Path, cache: Path, file: str) -> None:
    before = prepare(model, cache).digest
    path = model / file
    content = path.read_bytes()
    path.write_bytes(content + b" " if file.endswith("json") else flipped(content))
    assert prepare(model, cache).digest != before


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def test_several_processes_at_once(model: Path, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from runtime.engine.reference.checkpoint import prepare;"
        "done = []; w = prepare(Path(sys.argv[1]), Path(sys.argv[2]), lambda *a: done.append(a));"
        "print(w.digest, bool(done))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, model, cache], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60)[0].split() for process in started]
    assert len({digest for digest, _ in said}) == 1
    assert [wrote for _, wrote in said].count("True") == 1
    assert entries(cache) == [".lock", "whole"]


def test_what_a_dead_process_left_is_swept_away(model: Path, cache: Path) -> None:
    digest = prepare(model, cache).digest
    whole = cache / "weights" / digest
    (whole / "weights.bin").write_bytes(b"half")
    partial = whole.with_suffix(".partial")
    partial.mkdir()
    (partial / "weights.bin").write_bytes(b"less")
    assert prepare(model, cache)["norm"].shape == (64,)
    assert entries(cache) == [".lock", "whole"]


@pytest.mark.parametrize("content", [b"", b"{", b"{}"])
def test_a_damaged_index_is_written_anew(model: Path, cache: Path, content: bytes) -> None:
    digest = prepare(model, cache).digest
    (cache / "weights" / digest / "index.json").write_bytes(content)
    assert prepare(model, cache)["norm"].shape == (64,)


def test_a_lock_that_is_never_given_back(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = prepare(model, cache).digest
    (cache / "weights" / digest / "index.json").unlink()
    monkeypatch.setattr(checkpoint, "_LOCK_SECONDS", -1.0)
    with (
        checkpoint._lock(cache / "weights" / f"{digest}.lock"),
        pytest.raises(UnusableModel, match="another process"),
    ):
        prepare(model, cache)


def test_a_cache_that_cannot_be_written(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableModel, match=r"cannot be prepared in .*file"):
        prepare(model, tmp_path / "file")


def test_the_default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checkpoint.default_cache() == tmp_path / "splitwise-operator"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert checkpoint.default_cache() == tmp_path / "home" / ".cache" / "splitwise-operator"


class Reads:
    """Counts how often a model's files are read for their digest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._digest = checkpoint._digest
        monkeypatch.setattr(checkpoint, "_digest", self)

    def __call__(self, files: list[Path]) -> str:
        self.count += 1
        return self._digest(files)


def test_settled_files_are_read_once(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    monkeypatch.setattr(checkpoint, "_SETTLED_SECONDS", -1.0)
    first = prepare(model, cache).digest
    assert prepare(model, cache).digest == first
    assert reads.count == 1
    weights = model / "model.safetensors"
    times = weights.stat()
    weights.write_bytes(flipped(weights.read_bytes()))
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # size and time as before
    assert prepare(model, cache).digest != first
    for stamp in (cache / "stamps").iterdir():
        stamp.write_bytes(b"damaged")
    assert prepare(model, cache).digest != first
    assert reads.count == 3


def test_young_files_are_read_every_time(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    monkeypatch.setattr(checkpoint, "_SETTLED_SECONDS", 3600.0)
    for _ in range(2):
        prepare(model, cache)
    assert reads.count == 2


def test_shards_are_one_model(tmp_path: Path, model: Path, cache: Path) -> None:
    whole = prepare(model, cache)
    sharded = prepare(tiny_llama.make(tmp_path / "sharded", Shape(shards=3)), cache)
    for name in ("head", "norm", "0.qkv", "3.down"):
        np.testing.assert_array_equal(whole[name], sharded[name])


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_half_precision(tmp_path: Path, model: Path, cache: Path, dtype: str, error: float) -> None:
    whole = prepare(model, cache)["1.gate_up"]
    half = prepare(tiny_llama.make(tmp_path / dtype, Shape(dtype=dtype)), cache)["1.gate_up"]
    np.testing.assert_allclose(half, whole, rtol=error, atol=1e-6)
    assert not np.array_equal(half, whole)


def test_the_newer_way_to_write_rotary_settings(tmp_path: Path, cache: Path) -> None:
    old = tiny_llama.make(tmp_path / "old", tiny_llama.LLAMA3)
    new = tiny_llama.make(tmp_path / "new", tiny_llama.LLAMA3)
    config = json.loads((new / "config.json").read_text())
    config["rope_parameters"] = config.pop("rope_scaling") | {"rope_theta": config.pop("rope_theta")}
    (new / "config.json").write_text(json.dumps(config))
    assert prepare(new, cache).architecture == prepare(old, cache).architecture


@pytest.mark.parametrize(
    ("generation", "expected"), [({"eos_token_id": [2, 5]}, (2, 5)), ({"eos_token_id": 7}, (7,)), ({}, (2,))]
)
def test_end_tokens(model: Path, cache: Path, generation: dict[str, Any], expected: tuple[int, ...]) -> None:
    (model / "generation_config.json").write_text(json.dumps(generation))
    assert prepare(model, cache).architecture.end_tokens == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "architecture MistralForCausalLM: the reference engine"),
        ({"architectures": None, "model_type": "gpt2"}, "architecture gpt2"),
        ({"architectures": None, "model_type": None}, "names none"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling yarn"),
        ({"rope_scaling": {"type": "linear"}}, "rope scaling linear"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"num_attention_heads": 3, "head_dim": 16}, "3 query heads cannot share 2"),
        ({"head_dim": 15}, "even head size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"intermediate_size": 64}, r"gate_proj.weight has shape \(128, 64\)"),
        ({"num_hidden_layers": 5}, r"lacks model\.layers\.4"),
        ({"num_hidden_layers": 3}, r"has model\.layers\.3.*does not know"),
        ({"tie_word_embeddings": False}, "lacks lm_head.weight"),
    ],
)
def test_what_it_cannot_serve_it_refuses(
    model: Path, cache: Path, change: dict[str, Any], message: str
) -> None:
    config = json.loads((model / "config.json").read_text()) | change
    kept = {key: value for key, value in config.items() if value is not None}
    (model / "config.json").write_text(json.dumps(kept))
    with pytest.raises(UnusableModel, match=message):
        prepare(model, cache)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("config.json", Path.unlink, "no config.json in it"),
        ("config.json", cut, "config.json: not JSON"),
        ("config.json", lambda path: path.write_text("[]"), "config.json: not a JSON object"),
        ("model.safetensors", Path.unlink, "neither model.safetensors"),
        ("model.safetensors", cut, "the file ends early; fetch it again"),
        ("model.safetensors", lambda path: path.write_bytes(b"no"), "not a safetensors file"),
        ("model.safetensors", lambda path: path.write_bytes(b"\xff" * 100), "not a safetensors file"),
        ("model.safetensors", lambda path: path.write_bytes(bytes(7) + b"\x02{}"), "not a safetensors file"),
    ],
)
def test_damaged_files(
    model: Path, cache: Path, file: str, damage: Callable[[Path], None], message: str
) -> None:
    damage(model / file)
    with pytest.raises(UnusableModel, match=message):
        prepare(model, cache)
    assert not list(cache.rglob("*.partial"))


def test_no_model_there(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UnusableModel, match="no such model"):
        prepare(tmp_path / "nothing", cache)


def laid_out(model: Path, cache: Path, *, memory_bytes: int = 2**20, revision: str = "r1") -> Layout:
    return layout_of(
        model, name="m", revision=revision, memory_bytes=memory_bytes, block_tokens=16, cache_dir=cache
    )


def test_the_layout_of_a_pool(model: Path, cache: Path) -> None:
    layout = laid_out(model, cache)
    assert layout.block_bytes == 2 * 2 * 16 * 16 * 4
    assert layout.blocks == 2**20 // (4 * layout.block_bytes)
    assert layout.total_bytes <= 2**20
    assert (layout.layers, layout.kv_heads, layout.head_dim, layout.dtype) == (4, 2, 16, "float32")
    assert layout.revision.startswith("r1+")
    prepare(model, cache)
    assert laid_out(model, cache) == layout


def test_a_pool_too_small_for_a_block(model: Path, cache: Path) -> None:
    with pytest.raises(UnusableModel, match=r"kv\.memory_bytes is 16383, but one block .* takes 16384"):
        laid_out(model, cache, memory_bytes=16383)


def test_other_weights_under_one_name_do_not_exchange_kv(tmp_path: Path, model: Path, cache: Path) -> None:
    other = tiny_llama.make(tmp_path / "other", Shape(seed=99))
    assert [line.split(":")[0] for line in differences(laid_out(model, cache), laid_out(other, cache))] == [
        "revision"
    ]


def test_a_pool_of_another_model_is_refused(tmp_path: Path, model: Path, cache: Path) -> None:
    for other in (Shape(seed=99), Shape(layers=3)):
        layout = laid_out(tiny_llama.make(tmp_path / str(other.layers), other), cache)
        pool = HeapPool(layout, bytearray(layout.total_bytes))
        with pytest.raises(UnusableModel, match="laid out for another model"):
            ReferenceEngine.open(model, name="m", pool=pool, cache_dir=cache)
