"""Whatever the tokens, the pieces put together are the full decode, and no piece cuts a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from runtime.tokenizer.detokenizer import Vocabulary, byte_alphabet, vocabulary_of

ALPHABET = {byte: character for character, byte in byte_alphabet().items()}
EMOJI = "😀".encode()


def byte_level() -> Tokenizer:
    """Token n is byte n; 256 is special, 257 an added word with a space, 258 a merge."""
    vocabulary = {ALPHABET[byte]: byte for byte in range(256)} | {"he": 258}
    tokenizer = Tokenizer(models.BPE({**vocabulary, "<|end|>": 256, "two words": 257}, [("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken("two words", normalized=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Token n is byte n; then words, the special one at 259."""
    words = {"▁the": 256, "▁sea": 257, "s": 258, "<s>": 259, "é": 260}
    bytes_of = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(bytes_of | words, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


LEVEL, FALLBACK = byte_level(), byte_fallback()
LEVEL_VOCABULARY, FALLBACK_VOCABULARY = vocabulary_of(LEVEL), vocabulary_of(FALLBACK)
awkward = st.sampled_from([*EMOJI, 0x41, 0xC3, 0xA9, 0xED, 0xA0, 0xFF, 0xE2, 0x82])


@given(st.lists(awkward | st.integers(0, 258), max_size=24))
def test_byte_level_pieces_are_the_full_decode(ids: list[int]) -> None:
    detokenizer = LEVEL_VOCABULARY.detokenizer(LEVEL_VOCABULARY)
    text = "".join(detokenizer.push(id) for id in ids) + detokenizer.flush()
    assert text == LEVEL.decode(ids, skip_special_tokens=True)


@given(st.lists(awkward | st.integers(0, 260), max_size=24))
def test_byte_fallback_pieces_continue_the_text_before_them(ids: list[int]) -> None:
    detokenizer = FALLBACK_VOCABULARY.detokenizer(FALLBACK_VOCABULARY)
    text = "".join(detokenizer.push(id) for id in ids) + detokenizer.flush()
    before = [258]  # "s": what a prompt may have ended with
    assert "s" + text == FALLBACK.decode(before + ids, skip_special_tokens=True)


def test_a_character_waits_for_its_last_byte() -> None:
    detokenizer = LEVEL_VOCABULARY.detokenizer(LEVEL_VOCABULARY)
    assert [detokenizer.push(byte) for byte in EMOJI] == ["", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_half_a_character_at_the_end_is_told_by_flush() -> None:
    detokenizer = LEVEL_VOCABULARY.detokenizer(LEVEL_VOCABULARY)
    assert detokenizer.push(0x41) == "A"
    assert detokenizer.push(EMOJI[0]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_a_run_of_single_bytes_goes_out_at_its_end() -> None:
    detokenizer = FALLBACK_VOCABULARY.detokenizer(FALLBACK_VOCABULARY)
    assert [detokenizer.push(id) for id in (*EMOJI, 257)] == ["", "", "", "", "😀 sea"]
    assert [detokenizer.push(id) for id in (0xC3, 0x41, 256)] == ["", "", "\ufffd\ufffd the"]


def test_special_tokens_are_no_text_and_added_words_are() -> None:
    detokenizer = LEVEL_VOCABULARY.detokenizer(LEVEL_VOCABULARY)
    assert [detokenizer.push(id) for id in (258, 256, 257)] == ["he", "", "two words"]


@pytest.mark.parametrize("vocabulary", [LEVEL_VOCABULARY, FALLBACK_VOCABULARY])
def test_ids_behind_the_vocabulary_are_no_text(vocabulary: Vocabulary) -> None:
    """Models pad their output matrix; such an id may be sampled and decodes to nothing."""
    assert vocabulary.detokenizer(vocabulary).push(100_000) == ""


def test_a_decoder_of_another_kind_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="WordPiece"):
        vocabulary_of(tokenizer)
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(ValueError, match="none"):
        vocabulary_of(tokenizer)
