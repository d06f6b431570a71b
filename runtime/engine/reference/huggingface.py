"""A Hugging Face folder: config.json, generation_config.json and safetensors, whole or sharded."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.engine.reference.architecture import (
    Architecture,
    UnusableModel,
    inverse_frequencies,
    llama3_frequencies,
)

_FAMILIES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
_IGNORED = (".rotary_emb.inv_freq",)
_HEADER_LIMIT = 100 * 2**20


class HuggingFaceFolder:
    """The model in a folder. Raises UnusableModel with a sentence for whatever it cannot serve."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "config.json").exists():
            raise UnusableModel(f"{folder}: no config.json in it; give a Hugging Face folder or a GGUF file")
        self._config = _json(folder / "config.json")
        try:
            self.architecture = _architecture(self._config, _generation_config(folder))
        except KeyError as error:
            raise UnusableModel(f"{folder / 'config.json'}: {error.args[0]} is missing") from error
        self.architecture.check()

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Everything that decides the answers."""
        configs = [self.folder / "config.json", self.folder / "generation_config.json"]
        return (*(path for path in configs if path.exists()), *self._weight_files)

    def names(self) -> set[str]:
        tied = {"lm_head.weight"} if self.architecture.tied else set[str]()
        return {name for name in self._tensors if not name.endswith(_IGNORED)} - tied

    def tensor(self, name: str) -> NDArray[np.float32]:
        return self._tensors[name].read()

    @cached_property
    def _weight_files(self) -> tuple[Path, ...]:
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            return tuple(self.folder / name for name in sorted(set(_json(index)["weight_map"].values())))
        if (self.folder / "model.safetensors").exists():
            return (self.folder / "model.safetensors",)
        raise UnusableModel(f"{self.folder}: neither model.safetensors nor model.safetensors.index.json")

    @cached_property
    def _tensors(self) -> dict[str, "_Tensor"]:
        return {name: tensor for path in self._weight_files for name, tensor in _header(path).items()}


class _Tensor:
    """Where a tensor lies in a safetensors file."""

    def __init__(self, path: Path, start: int, entry: dict[str, Any]) -> None:
        self.path, self.start, self.code = path, start, entry["dtype"]
        self.shape = tuple(entry["shape"])
        self.bytes = entry["data_offsets"][1] - entry["data_offsets"][0]

    def read(self) -> NDArray[np.float32]:
        kinds = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
        if self.code not in kinds:
            raise UnusableModel(f"{self.path}: tensors of type {self.code}; F32, F16 and BF16 can be read")
        kind = np.dtype(kinds[self.code])
        if self.bytes != int(np.prod(self.shape)) * kind.itemsize:
            raise UnusableModel(f"{self.path}: a tensor of shape {self.shape} in {self.bytes} bytes")
        raw = np.fromfile(self.path, dtype=kind, count=self.bytes // kind.itemsize, offset=self.start)
        if raw.nbytes != self.bytes:
            raise UnusableModel(f"{self.path}: the file ends early; fetch it again")
        if self.code == "BF16":  # the upper half of a float32
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32, copy=False).reshape(self.shape)


def _header(path: Path) -> dict[str, _Tensor]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_HEADER_LIMIT, path.stat().st_size - 8):
                raise UnusableModel(f"{path}: not a safetensors file, or cut short; fetch it again")
            entries = json.loads(file.read(length))
    except OSError as error:
        raise UnusableModel(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UnusableModel(f"{path}: not a safetensors file, or cut short; fetch it again") from error
    start = 8 + length
    return {
        name: _Tensor(path, start + entry["data_offsets"][0], entry)
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def _architecture(config: dict[str, Any], generation: dict[str, Any]) -> Architecture:
    family = _family(config)
    _refuse_what_we_lack(config)
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return Architecture(
        family=family,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        context_tokens=config["max_position_embeddings"],
        norm_eps=config["rms_norm_eps"],
        inverse_frequencies=_frequencies(config, head_dim),
        qkv_bias=family == "qwen2",
        tied=config.get("tie_word_embeddings", False),
        end_tokens=_end_tokens(generation) or _end_tokens(config),
    )


def _family(config: dict[str, Any]) -> str:
    names = config.get("architectures") or [str(config.get("model_type") or "(config.json names none)")]
    for name in names:
        if name in _FAMILIES:
            return _FAMILIES[name]
    raise UnusableModel(
        f"architecture {', '.join(names)}: the reference engine serves {', '.join(sorted(_FAMILIES))}; "
        "use the vLLM engine for others"
    )


def _refuse_what_we_lack(config: dict[str, Any]) -> None:
    reasons = {
        "quantization_config": "quantised weights in safetensors; use the original weights or a GGUF file",
        "attention_bias": "attention_bias; only Qwen2's biases are known here",
        "mlp_bias": "mlp_bias",
        "use_sliding_window": "sliding-window attention",
    }
    for key, reason in reasons.items():
        if config.get(key):
            raise UnusableModel(f"the reference engine does not serve models with {reason}")
    if config.get("hidden_act", "silu") != "silu":
        raise UnusableModel(f"activation {config['hidden_act']}: the reference engine knows silu only")


def _frequencies(config: dict[str, Any], head_dim: int) -> tuple[float, ...]:
    # Newer folders keep everything in rope_parameters, older ones in rope_theta and rope_scaling.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config.get("rope_theta", 10_000.0)
    plain = inverse_frequencies(float(theta), head_dim)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return plain
    if kind == "llama3":
        return llama3_frequencies(plain, scaling)
    raise UnusableModel(f"rope scaling {kind}: the reference engine knows default and llama3")


def _end_tokens(config: dict[str, Any]) -> tuple[int, ...]:
    found = config.get("eos_token_id")
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)


def _generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return _json(path) if path.exists() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UnusableModel(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UnusableModel(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise UnusableModel(f"{path}: not a JSON object")
    return content
