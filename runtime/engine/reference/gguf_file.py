"""A GGUF file of the Llama family, presented under Hugging Face names and conventions.

GGUF stores the Q and K rows of architecture "llama" for rotary pairs (x0, x1), (x2, x3), ...; everything here
uses the pairs (x0, x[d/2]), (x1, x[d/2+1]), ..., so those rows are put back when they are read.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from runtime.engine.reference.architecture import Architecture, UnusableModel, inverse_frequencies

_FAMILIES = ("llama", "qwen2")
_REFUSED = ("expert_count", "attention.sliding_window", "embedding_scale", "residual_scale", "logit_scale")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FREQUENCY_FACTORS = "rope_freqs.weight"


class GgufFile:
    """The model in a file, dequantised tensor by tensor. Opened when first asked, as that takes seconds.
    Raises UnusableModel with a sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = (path,)

    @cached_property
    def architecture(self) -> Architecture:
        if self._family not in _FAMILIES:
            raise UnusableModel(
                f"{self.path}: architecture {self._family}: the reference engine serves "
                f"{', '.join(_FAMILIES)}; use the vLLM engine for others"
            )
        found = self._architecture()
        found.check()
        return found

    def names(self) -> set[str]:
        return set(self._tensors) - {_FREQUENCY_FACTORS}

    def tensor(self, name: str) -> NDArray[np.float32]:
        tensor = self._tensors[name]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UnusableModel(f"{self.path}: {name}: {error}") from error
        values = values.astype(np.float32, copy=False)
        if self._family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            return _half_split(values, self.architecture.head_dim)
        return values

    @cached_property
    def _reader(self) -> gguf.GGUFReader:
        try:
            return gguf.GGUFReader(self.path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise UnusableModel(f"{self.path}: not a GGUF file, or cut short; fetch it again") from error

    @cached_property
    def _family(self) -> str:
        return str(self._fact("general.architecture"))

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        return {_name(tensor.name): tensor for tensor in self._reader.tensors}

    def _architecture(self) -> Architecture:
        self._refuse_what_we_lack()
        heads = int(self._fact("{}.attention.head_count"))
        hidden = int(self._fact("{}.embedding_length"))
        head_dim = int(self._fact("{}.rope.dimension_count", hidden // heads))
        return Architecture(
            family=self._family,
            layers=int(self._fact("{}.block_count")),
            hidden=hidden,
            heads=heads,
            kv_heads=int(self._fact("{}.attention.head_count_kv", heads)),
            head_dim=head_dim,
            intermediate=int(self._fact("{}.feed_forward_length")),
            vocabulary=int(self._tensors["model.embed_tokens.weight"].shape[1]),
            context_tokens=int(self._fact("{}.context_length")),
            norm_eps=float(self._fact("{}.attention.layer_norm_rms_epsilon")),
            inverse_frequencies=self._frequencies(head_dim),
            qkv_bias=self._family == "qwen2",
            tied="lm_head.weight" not in self._tensors,
            end_tokens=self._end_tokens(),
        )

    def _refuse_what_we_lack(self) -> None:
        for key in _REFUSED:
            if self._fact("{}." + key, 0):
                raise UnusableModel(f"{self.path}: {key}: the reference engine does not know it")
        scaling = self._fact("{}.rope.scaling.type", "none")
        if scaling != "none":
            raise UnusableModel(f"{self.path}: rope scaling {scaling}: the reference engine does not know it")
        if "model.embed_tokens.weight" not in self._tensors:
            raise UnusableModel(f"{self.path}: token_embd.weight is missing")

    def _frequencies(self, head_dim: int) -> tuple[float, ...]:
        plain = inverse_frequencies(float(self._fact("{}.rope.freq_base", 10_000.0)), head_dim)
        if _FREQUENCY_FACTORS not in self._tensors:
            return plain
        factors = self.tensor(_FREQUENCY_FACTORS).tolist()  # Llama 3's scaling, spelled out per pair
        return tuple(frequency / factor for frequency, factor in zip(plain, factors, strict=True))

    def _end_tokens(self) -> tuple[int, ...]:
        ids = (self._fact(f"tokenizer.ggml.{kind}_token_id", -1) for kind in ("eos", "eot"))
        return tuple(dict.fromkeys(int(id) for id in ids if id >= 0))

    def _fact(self, key: str, default: Any = None) -> Any:
        if "{}" in key:
            key = key.format(self._family)
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise UnusableModel(f"{self.path}: {key} is missing")
        return default


def _name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    part, _, kind = rest.partition(".")
    if name.startswith("blk.") and part in _PARTS:
        return f"model.layers.{block}.{_PARTS[part]}.{kind}"
    return name


def _half_split(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rows of [x0, x[d/2], x1, x[d/2+1], ...] per head, back in the order x0, x1, x2, ..."""
    heads = rows.shape[0] // head_dim
    return rows.reshape(heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
