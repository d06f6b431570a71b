"""Where a tokenizer comes from: a Hugging Face folder or a GGUF file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Encoder

from runtime.tokenizer.gguf import read_fields
from runtime.tokenizer.template import ChatTemplate
from runtime.tokenizer.tokenizer import Tokenizer

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_GGUF_SPECIAL_TYPES = (3, 4)  # control and user-defined


def load(path: Path) -> Tokenizer:
    """Raises ValueError with a sentence if there is no tokenizer in `path` that we can use."""
    try:
        return _from_folder(path) if path.is_dir() else _from_gguf(path)
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"no usable tokenizer in {path}: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"no usable tokenizer in {path}: {error}") from error


# ---- a Hugging Face folder


def _from_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ValueError("there is no tokenizer.json; export the fast tokenizer of the model")
    settings, model = _json(folder / "tokenizer_config.json"), _json(folder / "config.json")
    try:
        encoder = Encoder.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"tokenizer.json: {error}") from error
    special = {
        name: token["content"] if isinstance(token, dict) else token
        for name in _SPECIAL_NAMES
        if (token := settings.get(name)) is not None
    }
    source = _template_source(folder, settings)
    return Tokenizer(
        encoder,
        end_tokens=_end_tokens(folder, model, encoder, special),
        context_tokens=_context(model),
        template=None if source is None else ChatTemplate(source, special),
    )


def _json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text("utf-8"))) if file.is_file() else {}


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """A file of its own wins over the settings; of several named templates, the one named default."""
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text("utf-8")
    source = settings.get("chat_template") or _json(folder / "chat_template.json").get("chat_template")
    if isinstance(source, list):
        source = {named["name"]: named["template"] for named in source}.get("default")
    return source


def _end_tokens(
    folder: Path, model: Mapping[str, Any], encoder: Encoder, special: Mapping[str, str]
) -> frozenset[int]:
    for settings in (_json(folder / "generation_config.json"), model):
        if (ids := settings.get("eos_token_id")) is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    token = encoder.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return frozenset() if token is None else frozenset({token})


def _context(model: Mapping[str, Any]) -> int:
    text = model.get("text_config") or model
    return int(text.get("max_position_embeddings") or 0)


# ---- a GGUF file


def _from_gguf(file: Path) -> Tokenizer:
    fields = read_fields(file, wanted=("tokenizer.", "general.architecture", ".context_length"))
    if (kind := fields.get("tokenizer.ggml.model")) != "gpt2":
        raise ValueError(f"its tokenizer is of kind {kind!r}, and only gpt2 (byte-level BPE) can be rebuilt")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    encoder = _gguf_encoder(fields, tokens)
    special = {
        f"{name}_token": tokens[fields[key]]
        for name, key in (("bos", "tokenizer.ggml.bos_token_id"), ("eos", "tokenizer.ggml.eos_token_id"))
        if key in fields
    }
    ends = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    source = fields.get("tokenizer.chat_template")
    return Tokenizer(
        encoder,
        end_tokens=frozenset(end for end in ends if end is not None),
        context_tokens=int(fields.get(f"{fields['general.architecture']}.context_length", 0)),
        template=None if source is None else ChatTemplate(source, special),
    )


def _gguf_encoder(fields: Mapping[str, Any], tokens: list[str]) -> Encoder:
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    encoder = Encoder(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    encoder.pre_tokenizer = _pre_tokenizer(fields.get("tokenizer.ggml.pre", "gpt-2"))
    encoder.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in _GGUF_SPECIAL_TYPES]
    encoder.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if fields.get("tokenizer.ggml.add_bos_token"):
        id = fields["tokenizer.ggml.bos_token_id"]
        bos = tokens[id]
        encoder.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, id)]
        )
    return encoder


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in ("gpt-2", "default"):
        return byte_level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    raise ValueError(f"its pre-tokenizer {name!r} is not known here: use the model's Hugging Face folder")
