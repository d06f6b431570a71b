"""A tiny model as a GGUF file, with the conventions that converters follow."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

import tiny_llama

Float = NDArray[np.float32]

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make(
    path: Path,
    shape: tiny_llama.Shape = tiny_llama.LLAMA,
    *,
    quantised: gguf.GGMLQuantizationType | None = None,
    facts: dict[str, Any] | None = None,
    extra: dict[str, Float] | None = None,
    architecture: str = "",
    without: str = "",
) -> Path:
    """Write the model of `shape`. `facts` are added to the metadata, `extra` to the tensors; `without`
    names a tensor to leave out."""
    arch = architecture or shape.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_eos_token_id(tiny_llama.IM_END)
    for key, value in (facts or {}).items():
        _add(writer, key.format(arch), value)
    for name, values in (_tensors(shape) | (extra or {})).items():
        if name != without:
            _add_tensor(writer, name, values, quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds: dict[type, Any] = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds[type(value)](key, value)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, values: Float, quantised: gguf.GGMLQuantizationType | None
) -> None:
    if quantised is None or values.ndim == 1:  # converters leave vectors alone
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quantize(values, quantised), raw_dtype=quantised)


def _tensors(shape: tiny_llama.Shape) -> dict[str, Float]:
    made = {}
    for name, values in tiny_llama.tensors(shape).items():
        part, kind = name.rsplit(".", 1)
        prefix = ""
        if part.startswith("model.layers."):
            _, _, layer, part = part.split(".", 3)
            prefix = f"blk.{layer}."
        turned = shape.model_type == "llama" and part.endswith(("q_proj", "k_proj"))
        made[f"{prefix}{_NAMES[part]}.{kind}"] = interleaved(values, shape.head_dim) if turned else values
    return made


def interleaved(rows: Float, head_dim: int) -> Float:
    """Rows x0, x1, ... of each head as x0, x[d/2], x1, x[d/2+1], ..."""
    order = np.arange(len(rows)).reshape(-1, 2, head_dim // 2).transpose(0, 2, 1).ravel()
    return np.ascontiguousarray(rows[order])
