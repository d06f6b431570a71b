"""A tiny random Llama as a real Hugging Face folder, made in a fraction of a second.

    path = tiny_llama.make(tmp_path / "model")                 # Llama, tied embeddings
    path = tiny_llama.make(tmp_path / "model", QWEN2)          # QKV bias
    path = tiny_llama.make(tmp_path / "model", UNTIED)         # an output matrix of its own

Equal arguments give equal bytes. The weights are wide enough that answers vary instead of repeating.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

Float = NDArray[np.float32]

VOCABULARY = 384
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = 0, 1, 2

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

_CORPUS = (
    "The prompt machine computes the keys and values of every token of the prompt, one layer after another. "
    "The token machine waits for them, and then writes the answer one token at a time. "
    "How many letters are there in the name of the river that runs through the town of the old king? "
    "Nothing is known of the sea, said the man in the boat; but we shall see what the wind and the water do. "
    "If there are 10 blocks of 16 tokens, then 160 tokens fit; 25 more need 2 more blocks. "
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What may differ between tiny models."""

    model_type: str = "llama"
    tied: bool = True
    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 128
    context_tokens: int = 8192
    rope_theta: float = 10_000.0
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float32"
    shards: int = 1
    seed: int = 7

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


LLAMA = Shape()
UNTIED = Shape(tied=False, seed=8)
QWEN2 = Shape(model_type="qwen2", rope_theta=1_000_000.0, seed=9)
LLAMA3 = Shape(
    rope_theta=500_000.0,
    seed=10,
    rope_scaling=(
        ("rope_type", "llama3"),
        ("factor", 8.0),
        ("low_freq_factor", 1.0),
        ("high_freq_factor", 4.0),
        ("original_max_position_embeddings", 256),
    ),
)


def make(folder: Path, shape: Shape = LLAMA) -> Path:
    """Write the model into `folder` (made if missing) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tensors(folder, shape)
    _write_json(folder / "config.json", config(shape))
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": IM_START, "eos_token_id": IM_END, "pad_token_id": END_OF_TEXT},
    )
    tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": CHAT_TEMPLATE,
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": shape.context_tokens,
        },
    )
    return folder


def config(shape: Shape = LLAMA) -> dict[str, Any]:
    """config.json of a shape."""
    return {
        "architectures": ["LlamaForCausalLM" if shape.model_type == "llama" else "Qwen2ForCausalLM"],
        "model_type": shape.model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.rope_theta,
        "rope_scaling": dict(shape.rope_scaling) or None,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
        "torch_dtype": shape.dtype,
    }


def tensors(shape: Shape = LLAMA) -> dict[str, Float]:
    """Every tensor under its Hugging Face name, float32, [out, in] for matrices."""
    return dict(_tensors(shape))


@cache
def tokenizer() -> Tokenizer:
    """Byte-level BPE with 384 tokens, ids 0-2 special; any text survives encode and decode."""
    made = Tokenizer(models.BPE(unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator([_CORPUS], trainer)
    if made.get_vocab_size() != VOCABULARY:
        raise AssertionError(f"the corpus gives {made.get_vocab_size()} tokens, not {VOCABULARY}")
    return made


def _tensors(shape: Shape) -> Iterator[tuple[str, Float]]:
    rng = np.random.default_rng(shape.seed)

    def normal(*size: int, std: float, mean: float = 0.0) -> Float:
        return rng.normal(mean, std, size).astype(np.float32)

    hidden, inter = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", normal(VOCABULARY, hidden, std=0.4)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", normal(hidden, std=0.1, mean=1.0)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{at}.self_attn.{name}_proj.weight", normal(rows, hidden, std=0.25)
            if shape.model_type == "qwen2":
                yield f"{at}.self_attn.{name}_proj.bias", normal(rows, std=0.25)
        yield f"{at}.self_attn.o_proj.weight", normal(hidden, queries, std=0.25)
        yield f"{at}.post_attention_layernorm.weight", normal(hidden, std=0.1, mean=1.0)
        yield f"{at}.mlp.gate_proj.weight", normal(inter, hidden, std=0.25)
        yield f"{at}.mlp.up_proj.weight", normal(inter, hidden, std=0.25)
        yield f"{at}.mlp.down_proj.weight", normal(hidden, inter, std=0.25)
    yield "model.norm.weight", normal(hidden, std=0.1, mean=1.0)
    if not shape.tied:
        yield "lm_head.weight", normal(VOCABULARY, hidden, std=0.4)


def _write_tensors(folder: Path, shape: Shape) -> None:
    items = list(_tensors(shape))
    if shape.shards == 1:
        _save(dict(items), folder / "model.safetensors", shape.dtype)
        return
    names: dict[str, str] = {}
    for shard in range(shape.shards):
        name = f"model-{shard + 1:05}-of-{shape.shards:05}.safetensors"
        part = dict(items[shard :: shape.shards])
        _save(part, folder / name, shape.dtype)
        names |= dict.fromkeys(part, name)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": names})


def _save(part: dict[str, Float], path: Path, dtype: str) -> None:
    """The safetensors format: length of a JSON header, the header, the tensors' bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, tensor in part.items():
        data = _bytes(tensor, dtype)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": _CODES[dtype], "shape": tensor.shape, "data_offsets": offsets}
        body += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)


def _bytes(tensor: Float, dtype: str) -> bytes:
    if dtype == "bfloat16":  # rounded to nearest, ties to even: what a conversion would do
        bits = tensor.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return tensor.astype(dtype).tobytes()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))
