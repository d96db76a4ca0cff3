"""Streamed text equals the whole text, whatever the ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_tokenizers import byte_level, ids_of, normalising, sentencepiece, word_piece
from tokenizers import AddedToken, Tokenizer, decoders

import mlxcel_trio.testing
from mlxcel_trio.engine.detokenizer import (
    REPLACEMENT,
    BytesDetokenizer,
    StreamingDetokenizer,
    TokenBytes,
    WindowDetokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

SHIPPED = Tokenizer.from_file(str(Path(mlxcel_trio.testing.__file__).parent / "tokenizer" / "tokenizer.json"))
BYTE_LEVEL = {"shipped": SHIPPED, "plain bytes": byte_level(), "normalising": normalising()}
SENTENCEPIECE = {prefix: sentencepiece(prefix=prefix) for prefix in ("first", "always", "never")}
WHOLE_WORDS = {"word piece": word_piece(), "with cleanup": word_piece(cleanup=True)}

# Ids beyond the vocabulary appear as well: models pad their output layer.
ids = st.lists(st.integers(0, 700), max_size=60)


def whole(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=False)


def table(tokenizer: Tokenizer) -> TokenBytes:
    token_bytes = TokenBytes.of(tokenizer)
    assert token_bytes is not None
    return token_bytes


def streamed(detokenizer: StreamingDetokenizer, tokens: Sequence[int]) -> list[str]:
    return [*map(detokenizer.feed, tokens), detokenizer.finish()]


@pytest.mark.parametrize("kind", BYTE_LEVEL)
@given(tokens=ids)
@settings(deadline=None)
def test_byte_level_text_is_what_the_tokenizer_decodes(kind: str, tokens: list[int]) -> None:
    tokenizer = BYTE_LEVEL[kind]
    text = "".join(streamed(BytesDetokenizer(table(tokenizer)), tokens))
    assert text == whole(tokenizer, tokens)
    assert text == b"".join(table(tokenizer)[token] for token in tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("prefix", SENTENCEPIECE)
@given(tokens=ids)
@settings(deadline=None)
def test_sentencepiece_text_is_the_bytes_of_its_tokens(prefix: str, tokens: list[int]) -> None:
    token_bytes = table(SENTENCEPIECE[prefix])
    spelled = b"".join(token_bytes[token] for token in tokens)
    if prefix != "never":
        spelled = spelled.removeprefix(b" ")
    text = "".join(streamed(BytesDetokenizer(token_bytes), tokens))
    assert text == spelled.decode("utf-8", "replace")


@pytest.mark.parametrize("tokenizer", [*BYTE_LEVEL.values(), *SENTENCEPIECE.values()])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT), max_size=30))
@settings(deadline=None)
def test_valid_text_never_shows_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = streamed(BytesDetokenizer(table(tokenizer)), tokens)
    assert "".join(pieces) == whole(tokenizer, tokens)
    assert REPLACEMENT not in "".join(pieces)


@pytest.mark.parametrize("kind", WHOLE_WORDS)
@given(tokens=st.lists(st.integers(0, 8), max_size=20))
@settings(deadline=None)
def test_unknown_decoders_yield_the_whole_text_as_well(kind: str, tokens: list[int]) -> None:
    tokenizer = WHOLE_WORDS[kind]
    detokenizer = WindowDetokenizer(lambda window: whole(tokenizer, window))
    assert "".join(streamed(detokenizer, tokens)) == whole(tokenizer, tokens)


def test_a_window_holds_half_a_character_back() -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode("aé🙂b", add_special_tokens=False).ids
    pieces = streamed(WindowDetokenizer(lambda window: whole(tokenizer, window)), tokens)
    assert pieces == ["a", "", "é", "", "", "", "🙂", "b", ""]


def test_an_emoji_split_over_tokens_arrives_whole() -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode("🙂!", add_special_tokens=False).ids
    assert streamed(BytesDetokenizer(table(tokenizer)), tokens) == ["", "", "", "🙂", "!", ""]


def test_bytes_that_are_no_character_are_replaced() -> None:
    detokenizer = BytesDetokenizer(table(SENTENCEPIECE["never"]))
    begins_two_bytes, letter = ids_of(SENTENCEPIECE["never"], ["<0xC3>", "a"])
    assert streamed(detokenizer, [begins_two_bytes, letter]) == ["", REPLACEMENT + "a", ""]


def test_an_unfinished_character_appears_at_the_end() -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode("🙂", add_special_tokens=False).ids[:3]
    assert streamed(BytesDetokenizer(table(tokenizer)), tokens) == ["", "", "", REPLACEMENT]


def test_only_the_first_space_of_a_text_is_dropped() -> None:
    tokenizer = SENTENCEPIECE["first"]
    space, word = ids_of(tokenizer, ["▁", "▁a"])
    pieces = streamed(BytesDetokenizer(table(tokenizer)), [9999, space, word, word])
    assert pieces == ["", "", " a", " a", ""]


def test_byte_tokens_are_bytes_only_where_the_decoder_says_so() -> None:
    tokenizer = sentencepiece()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    (newline,) = ids_of(tokenizer, ["<0x0A>"])
    assert table(tokenizer)[newline] == b"<0x0A>"
    assert table(sentencepiece())[newline] == b"\n"


def test_added_tokens_of_a_byte_level_tokenizer_are_literal() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<café>", normalized=False)])
    tokens = tokenizer.encode("é<café>é", add_special_tokens=False).ids
    assert "".join(streamed(BytesDetokenizer(table(tokenizer)), tokens)) == "é<café>é"


@pytest.mark.parametrize(
    ("decoder", "strips"),
    [
        (decoders.Metaspace(), True),
        (decoders.Metaspace(prepend_scheme="never"), False),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]), False),
        (decoders.Sequence([decoders.Sequence([decoders.Metaspace()]), decoders.Fuse()]), True),
    ],
)
def test_decoders_whose_tokens_have_bytes(decoder: decoders.Decoder, strips: bool) -> None:
    tokenizer = sentencepiece()
    tokenizer.decoder = decoder
    assert table(tokenizer).strips_leading_space is strips


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Replace("▁", " ")]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Metaspace(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
    ],
)
def test_decoders_that_look_at_neighbours_have_no_bytes(decoder: decoders.Decoder) -> None:
    tokenizer = sentencepiece()
    tokenizer.decoder = decoder
    assert TokenBytes.of(tokenizer) is None


def test_a_tokenizer_without_decoder_has_no_bytes() -> None:
    tokenizer = Tokenizer(sentencepiece().model)
    assert TokenBytes.of(tokenizer) is None
