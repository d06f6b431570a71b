"""What a model of the Llama family is, apart from its weights."""

import math
from typing import Any

from msgspec import Struct


class UnusableModel(ValueError):
    """The model cannot be served by this engine; the message says why and names the file."""


class Architecture(Struct, frozen=True):
    """A decoder of the Llama family: RMSNorm, rotary attention with shared KV heads, SwiGLU.

    inverse_frequencies: radians per position of each rotary pair (head_dim / 2 of them), any scaling
    included. qkv_bias: whether the attention's input projections add a bias (Qwen2)."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context_tokens: int
    norm_eps: float
    inverse_frequencies: tuple[float, ...]
    qkv_bias: bool
    tied: bool
    end_tokens: tuple[int, ...]

    def check(self) -> None:
        """Raises UnusableModel if the numbers cannot belong together."""
        if self.heads % self.kv_heads:
            raise UnusableModel(f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise UnusableModel(f"rotary embedding needs an even head size, not {self.head_dim}")
        if len(self.inverse_frequencies) != self.head_dim // 2:
            raise UnusableModel(
                f"{len(self.inverse_frequencies)} rotary frequencies for heads of {self.head_dim}"
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the model must have, under its Hugging Face name, [out, in] for matrices."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        known: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            known[at + "input_layernorm.weight"] = (self.hidden,)
            for name, rows in (("q", queries), ("k", keys), ("v", keys)):
                known[f"{at}self_attn.{name}_proj.weight"] = (rows, self.hidden)
                if self.qkv_bias:
                    known[f"{at}self_attn.{name}_proj.bias"] = (rows,)
            known[at + "self_attn.o_proj.weight"] = (self.hidden, queries)
            known[at + "post_attention_layernorm.weight"] = (self.hidden,)
            known[at + "mlp.gate_proj.weight"] = (self.intermediate, self.hidden)
            known[at + "mlp.up_proj.weight"] = (self.intermediate, self.hidden)
            known[at + "mlp.down_proj.weight"] = (self.hidden, self.intermediate)
        known["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            known["lm_head.weight"] = (self.vocabulary, self.hidden)
        return known


def inverse_frequencies(theta: float, head_dim: int) -> tuple[float, ...]:
    """The rotary frequencies without scaling: theta ** (-2i / head_dim)."""
    return tuple(theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2))


def llama3_frequencies(plain: tuple[float, ...], scaling: dict[str, Any]) -> tuple[float, ...]:
    """Llama 3's scaling: long wavelengths are stretched by `factor`, short ones kept, and those between
    `original / high_freq_factor` and `original / low_freq_factor` blended."""
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])

    def scaled(frequency: float) -> float:
        turns = original * frequency / (2 * math.pi)  # full turns within the original context
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        return frequency * (kept + (1 - kept) / factor)

    return tuple(scaled(frequency) for frequency in plain)
