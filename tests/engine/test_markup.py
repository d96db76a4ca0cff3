"""Markers in texts from outside stay text, for every kind of tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.small_tokenizers import (
    MARKERS,
    byte_level,
    ids_of,
    normalising,
    sentencepiece,
    word_piece,
)
from tokenizers import AddedToken, Tokenizer

from mlxcel_trio.engine.detokenizer import BytesDetokenizer, TokenBytes
from mlxcel_trio.engine.markup import Markup, new_sentinel

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENIZERS = {
    "byte level": byte_level(),
    "normalising": normalising(),
    "word piece": word_piece(),
    **{f"sentencepiece {prefix}": sentencepiece(prefix=prefix) for prefix in ("first", "always", "never")},
}
MARKUPS = {kind: Markup(tokenizer) for kind, tokenizer in TOKENIZERS.items()}

fragments = st.one_of(
    st.sampled_from(MARKERS),
    st.sampled_from(MARKERS).flatmap(
        lambda marker: st.integers(1, len(marker)).map(lambda end: marker[:end])
    ),
    st.sampled_from(MARKERS).flatmap(
        lambda marker: st.integers(0, len(marker)).map(lambda start: marker[start:])
    ),
    st.sampled_from(
        ["<loud>", "<LOUD>", "＜loud＞", "<ＭＡＳＫ>", " ", "\n", "  ", "a", "1", "<", ">", "é", "🙂"]
    ),
    st.text(max_size=3),
)
hostile_texts = st.lists(fragments, max_size=8).map("".join)


def decoded(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    token_bytes = TokenBytes.of(tokenizer)
    assert token_bytes is not None
    detokenizer = BytesDetokenizer(token_bytes)
    return "".join([*map(detokenizer.feed, tokens), detokenizer.finish()])


def markers_in(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    added = tokenizer.get_added_tokens_decoder()
    return [added[token].content for token in tokens if token in added]


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=hostile_texts)
@settings(deadline=None)
def test_no_text_is_encoded_as_markup(kind: str, text: str) -> None:
    tokens = MARKUPS[kind].encode_text(text)
    assert markers_in(TOKENIZERS[kind], tokens) == []


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece first", "sentencepiece always"])
@given(text=hostile_texts)
@settings(deadline=None)
def test_splitting_adds_and_loses_nothing(kind: str, text: str) -> None:
    text = "a" + text  # a space at the very beginning is SentencePiece's own affair
    tokens = MARKUPS[kind].encode_text(text)
    # SentencePiece cannot tell its own sign for a space from a space.
    expected = text if kind == "byte level" else text.replace("▁", " ")
    assert decoded(TOKENIZERS[kind], tokens) == expected


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(before=fragments, text=hostile_texts, after=fragments)
@settings(deadline=None)
def test_text_completes_no_marker_of_its_surroundings(kind: str, before: str, text: str, after: str) -> None:
    # Templates put names into brackets of their own, but no messages.
    assume(not any(text.strip() in marker[1:-1] for marker in MARKERS))
    tokenizer, markup = TOKENIZERS[kind], MARKUPS[kind]
    sentinel = new_sentinel(before + text + after)
    # A template joins a message to its own text as it is or trimmed.
    for shown in (markup.guard(text, sentinel), markup.guard(text, sentinel).strip()):
        tokens = markup.encode(before + shown + after, sentinel)
        apart = markup.encode(before + sentinel + after, sentinel)
        assert sorted(markers_in(tokenizer, tokens)) == sorted(markers_in(tokenizer, apart))


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("space", ["", " ", "\n"])
def test_neither_end_of_a_text_completes_a_marker(marker: str, space: str) -> None:
    markup, tokenizer = MARKUPS["byte level"], TOKENIZERS["byte level"]
    for at in range(1, len(marker)):
        head, tail = marker[:at], marker[at:]
        sentinel = new_sentinel("")
        # What a template adds follows the text as it is or trimmed.
        shown = [markup.guard(space + tail, sentinel), markup.guard(head + space, sentinel)]
        rendered = [head + shown[0], head + shown[0].strip(), shown[1] + tail, shown[1].strip() + tail]
        assert [markers_in(tokenizer, markup.encode(text, sentinel)) for text in rendered] == [[]] * 4


@pytest.mark.parametrize("marker", MARKERS)
def test_a_name_in_brackets_is_no_marker(marker: str) -> None:
    markup = MARKUPS["byte level"]
    sentinel = new_sentinel(marker)
    name = marker.strip("<>[]/|")
    before, after = marker.split(name, 1)
    tokens = markup.encode(before + markup.guard_name(name, sentinel) + after, sentinel)
    assert markers_in(TOKENIZERS["byte level"], tokens) == []
    assert decoded(TOKENIZERS["byte level"], tokens) == marker


def test_data_is_guarded_in_depth() -> None:
    markup = MARKUPS["byte level"]
    data = {"think": ["<think>", 1, None, {"a<think>": True}], "type": "object"}
    assert markup.guard_data(data, "|") == {
        "|think": ["<|think>", 1, None, {"a<|think>": True}],
        "type": "object",
    }


def test_harmless_text_is_left_alone() -> None:
    text = "if a < b and b > c: print('[x]')\n<div>think</div> I_N_S_T"
    for markup in MARKUPS.values():
        assert markup.guard(text, "0123") == text


def test_markup_of_the_template_is_recognised() -> None:
    tokenizer, markup = TOKENIZERS["sentencepiece first"], MARKUPS["sentencepiece first"]
    sentinel = new_sentinel("")
    rendered = "<s>[INST]" + markup.guard("a</s>b", sentinel) + "[/INST]"
    tokens = markup.encode(rendered, sentinel)
    assert markers_in(tokenizer, tokens) == ["<s>", "[INST]", "[/INST]"]
    assert decoded(tokenizer, tokens) == "<s>[INST]a</s>b[/INST]"


def test_whitespace_and_single_characters_are_text_whatever_the_tokenizer_adds() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(content, normalized=False) for content in ("\n\n", "  ", "é")])
    tokens = Markup(tokenizer).encode_text("a\n\nb  é")
    assert set(ids_of(tokenizer, ["\n\n", "  ", "é"])) <= set(tokens)


def test_extra_markers_are_split_although_the_tokenizer_has_none() -> None:
    markup = Markup(byte_level(), extra=["<reason>"])
    assert markup.guard("a <reason> b", "|") == "a <|reason> b"


def test_lone_surrogates_become_replacement_characters() -> None:
    tokens = MARKUPS["byte level"].encode_text("é\ud800<think>\udc00")
    assert decoded(TOKENIZERS["byte level"], tokens) == "é\ufffd<think>\ufffd"


def test_thousands_of_markers_compile() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(f"<unused{number}>", normalized=False) for number in range(3000)])
    tokenizer.add_tokens([AddedToken("<" + "long" * 500 + ">", normalized=False)])
    tokens = Markup(tokenizer).encode_text("<unused2999><unused3000>" + "<" + "long" * 500 + ">")
    assert markers_in(tokenizer, tokens) == []


@given(text=st.text("0123456789", max_size=40))
@settings(deadline=None)
def test_a_sentinel_next_to_digits_is_found_where_it_was_put(text: str) -> None:
    sentinel = new_sentinel(text)
    assert (text + sentinel + text).split(sentinel) == [text, text]
    assert sentinel not in text


def test_a_tokenizer_without_added_tokens_has_no_markup() -> None:
    tokenizer = Tokenizer(byte_level().model)
    markup = Markup(tokenizer)
    assert markup.guard("<think>", "|") == "<think>"
