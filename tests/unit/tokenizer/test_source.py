"""Tokenizers from Hugging Face folders and from GGUF files."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import processors

import tiny_llama
from runtime.tokenizer import load

TEXT = "The wind: 25 knots, é and 😀<|im_end|>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama.make(tmp_path / "model")


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes a key out."""
    content = json.loads(file.read_text()) if file.exists() else {}
    content.update(changes)
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# ---- Hugging Face


def test_a_folder_encodes_and_decodes_as_its_tokenizer_says(folder: Path) -> None:
    tokenizer = load(folder)
    ids = tokenizer.encode(TEXT)
    assert ids == Encoder.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    assert ids[-1] == tiny_llama.IM_END
    assert tokenizer.decode(ids) == TEXT.removesuffix("<|im_end|>")
    assert tokenizer.vocabulary == tiny_llama.VOCABULARY
    assert tokenizer.context_tokens == tiny_llama.LLAMA.context_tokens


def test_text_gets_what_the_post_processor_adds_and_chats_do_not(folder: Path) -> None:
    encoder = Encoder.from_file(str(folder / "tokenizer.json"))
    encoder.post_processor = processors.TemplateProcessing(
        single=["<|endoftext|>", "$A"], special_tokens=[("<|endoftext|>", tiny_llama.END_OF_TEXT)]
    )
    encoder.save(str(folder / "tokenizer.json"))
    tokenizer = load(folder)
    assert tokenizer.encode("wind")[0] == tiny_llama.END_OF_TEXT
    assert tokenizer.encode("wind")[1:] == tokenizer.encode("wind", special=False)


def test_truncation_and_padding_of_the_file_are_switched_off(folder: Path) -> None:
    plain = load(folder).encode(TEXT)
    encoder = Encoder.from_file(str(folder / "tokenizer.json"))
    encoder.enable_truncation(3)
    encoder.enable_padding(length=64)
    encoder.save(str(folder / "tokenizer.json"))
    assert load(folder).encode(TEXT) == plain


async def test_a_long_text_encodes_the_same_in_a_thread(folder: Path) -> None:
    tokenizer = load(folder)
    text = TEXT * 2000
    assert await tokenizer.encode_aside(text, special=False) == tokenizer.encode(text, special=False)


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [([0, 2], 2, {0, 2}), (0, 2, {0}), (None, 2, {2}), (None, [0, 2], {0, 2}), (None, None, {2})],
)
def test_end_tokens_come_from_generation_config_then_config_then_the_eos_token(
    folder: Path, generation: Any, config: Any, ends: set[int]
) -> None:
    edit(folder / "generation_config.json", eos_token_id=generation)
    edit(folder / "config.json", eos_token_id=config)
    edit(folder / "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    assert load(folder).end_tokens == ends


def test_a_template_file_wins_over_the_settings_and_default_over_other_names(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}"}]
    edit(folder / "tokenizer_config.json", chat_template=named, eos_token="<|im_end|>")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    assert load(folder).chat_text([]) == "<|im_end|>"
    (folder / "chat_template.jinja").write_text("from the file")
    assert load(folder).chat_text([]) == "from the file"


def test_a_model_without_a_template_says_which_endpoint_to_use(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ValueError, match="/v1/completions"):
        load(folder).chat_text([{"role": "user", "content": "x"}])


def test_single_tokens_show_their_bytes_and_special_ones_their_name(folder: Path) -> None:
    tokenizer = load(folder)
    *_, last = tokenizer.encode("😀", special=False)
    assert tokenizer.bytes_of(last) == "😀".encode()[-1:]
    assert tokenizer.text_of(last) == "\ufffd"
    assert tokenizer.text_of(tiny_llama.IM_END) == "<|im_end|>"
    assert tokenizer.bytes_of(1_000_000) == b""


# ---- GGUF


def gguf(file: Path, fields: Mapping[str, Any]) -> Path:
    """A GGUF file with these fields and no tensors."""

    body = b"".join(gguf_string(key) + gguf_value(item) for key, item in fields.items())
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + body)
    return file


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(item: Any) -> bytes:
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + gguf_string(item)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(gguf_string, item))
    return struct.pack(f"<IIQ{len(item)}i", 9, 5, len(item), *item)


def fields_of(folder: Path, **changes: Any) -> dict[str, Any]:
    """The tiny tokenizer as GGUF fields; None takes a field out."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    for id, name in enumerate(tiny_llama.SPECIAL):
        assert tokens[id] == name
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    fields = {
        "general.architecture": "llama",
        "llama.context_length": 2048,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}",
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return {key: value for key, value in fields.items() if value is not None}


def test_a_gguf_file_gives_the_same_tokenizer_as_the_folder(folder: Path, tmp_path: Path) -> None:
    file = gguf(tmp_path / "m.gguf", fields_of(folder))
    fresh, known = load(file), Encoder.from_file(str(folder / "tokenizer.json"))
    words = "The wind and the sea <|im_end|> é😀"
    assert fresh.encode(words) == known.encode(words, add_special_tokens=False).ids
    assert (fresh.end_tokens, fresh.context_tokens) == (frozenset({2}), 2048)
    assert fresh.chat_text([{"role": "user", "content": "Hi"}]) == "<|endoftext|>Hi"
    assert fresh.decode([tiny_llama.IM_END]) == ""


def test_digits_stand_alone_where_the_pre_tokenizer_says_so(folder: Path, tmp_path: Path) -> None:
    fields = fields_of(folder, tokenizer__ggml__pre="smollm")
    tokenizer = load(gguf(tmp_path / "m.gguf", fields))
    assert tokenizer.encode("1234") == [tokenizer.encode(digit)[0] for digit in "1234"]


def test_a_gguf_file_that_wants_a_first_bos_gets_it(folder: Path, tmp_path: Path) -> None:
    file = gguf(tmp_path / "m.gguf", fields_of(folder, tokenizer__ggml__add_bos_token=True))
    tokenizer = load(file)
    assert tokenizer.encode("wind") == [0, *tokenizer.encode("wind", special=False)]


# ---- what cannot be used


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer__ggml__model": "llama"}, "'llama'.*gpt2"),
        ({"tokenizer__ggml__pre": "qwen9"}, "'qwen9'.*Hugging Face folder"),
        ({"tokenizer__ggml__tokens": None}, "tokenizer.ggml.tokens"),
    ],
)
def test_a_gguf_tokenizer_that_cannot_be_rebuilt_says_why(
    folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(gguf(tmp_path / "m.gguf", fields_of(folder, **changes)))


def test_a_damaged_file_is_told_from_a_foreign_one(folder: Path, tmp_path: Path) -> None:
    whole = gguf(tmp_path / "m.gguf", fields_of(folder)).read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:200])
    with pytest.raises(ValueError, match="damaged"):
        load(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_bytes(b"\x80\x02" + whole)
    with pytest.raises(ValueError, match="not a GGUF file"):
        load(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(ValueError, match="version 1"):
        load(tmp_path / "m.gguf")


def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        load(tmp_path)
    with pytest.raises(ValueError, match="No such file"):
        load(tmp_path / "nothing")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="no usable tokenizer"):
        load(tmp_path)
