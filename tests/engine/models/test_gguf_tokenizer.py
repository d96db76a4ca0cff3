"""Tokenizers rebuilt from GGUF metadata, against the tokenizers they were taken from."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import load as load_tokenizer
from support.gguf_files import MERGES, MetadataValue, TinyLlama, gguf_bytes, tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mlxcel_trio.engine.models.gguf import open_gguf, plan_conversion
from mlxcel_trio.engine.models.gguf.tokenizer import SPLIT_RULES, ConvertedTokenizer, read_tokenizer
from mlxcel_trio.errors import CorruptModelError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog didn't mind at all.",
    "def add(a, b):\n    return a + b  # 12 + 30 = 42\n",
    "In 1984 there were 365 days; in 2024 there were 366. Naïve café, 你好 world 👋🏽!",
    "the theme then there these other another mother brother weather whether",
] * 5
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.lists(
    st.sampled_from([*CORPUS[0].split(), "12", "345", " ", "  ", "\n", "\t", "é", "👋🏽", "don't", "_x"]),
    max_size=8,
).map(" ".join)


def read(metadata: dict[str, MetadataValue], tmp_path: Path) -> ConvertedTokenizer:
    path = tmp_path / "tokenizer.gguf"
    path.write_bytes(gguf_bytes({"llama.context_length": 256, **metadata}, {}))
    with open_gguf(path) as file:
        return read_tokenizer(file)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text).ids)


@cache
def byte_level_original() -> Tokenizer:
    """The pipeline of SmolLM2's own tokenizer.json, trained on a few lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level_metadata(original: Tokenizer) -> dict[str, MetadataValue]:
    model = json.loads(original.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.eos_token_id": 1,
    }


def test_byte_level_ids_equal_the_original(tmp_path: Path) -> None:
    original = byte_level_original()
    rebuilt = Tokenizer.from_str(read(byte_level_metadata(original), tmp_path).tokenizer_json)

    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    @example("a<|im_end|>b <|endoftext|>")
    @example("1234567 12.50")
    @example("  two  spaces\n\n")
    def same(text: str) -> None:
        assert encode(rebuilt, text) == encode(original, text)
        ids = [index for index in encode(rebuilt, text) if index > 1]
        assert rebuilt.decode(ids) == text.replace("<|im_end|>", "").replace("<|endoftext|>", "")

    same()


@cache
def sentence_piece_original() -> sentencepiece.SentencePieceProcessor:
    """A Llama-2-like model: BPE, byte fallback, a space in front of every text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type="bpe", vocab_size=400,
        byte_fallback=True, split_digits=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentence_piece_metadata() -> dict[str, MetadataValue]:
    original = sentence_piece_original()
    pieces = range(original.get_piece_size())

    def kind(index: int) -> int:
        if original.is_unknown(index):
            return 2
        if original.is_control(index):
            return 3
        return 6 if original.is_byte(index) else 1

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [original.id_to_piece(index) for index in pieces],
        "tokenizer.ggml.scores": [float(original.get_score(index)) for index in pieces],
        "tokenizer.ggml.token_type": [kind(index) for index in pieces],
        "tokenizer.ggml.unknown_token_id": original.unk_id(),
        "tokenizer.ggml.bos_token_id": original.bos_id(),
        "tokenizer.ggml.eos_token_id": original.eos_id(),
    }


def test_sentence_piece_ids_equal_the_original(tmp_path: Path) -> None:
    original = sentence_piece_original()
    rebuilt = Tokenizer.from_str(read(sentence_piece_metadata(), tmp_path).tokenizer_json)

    @settings(max_examples=200, deadline=None)
    @given(TEXTS.filter(lambda text: text != "" and not {"\u2581", "\0"} & set(text) and "<" not in text))
    @example("The quick brown fox")
    @example(" leading and  double spaces ")
    @example("東京 👋🏽 unseen characters become bytes")
    def same(text: str) -> None:
        ids = encode(rebuilt, text)
        assert ids == [original.bos_id(), *original.encode(text)]
        assert rebuilt.decode(ids) == text

    same()


def test_sentence_piece_without_a_space_in_front(tmp_path: Path) -> None:
    metadata = sentence_piece_metadata() | {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    rebuilt = Tokenizer.from_str(read(metadata, tmp_path).tokenizer_json)
    assert encode(rebuilt, " the") == sentence_piece_original().encode("the")
    assert rebuilt.decode(encode(rebuilt, " the")) == " the"


@pytest.mark.parametrize(
    ("rule", "text", "pieces"),
    [
        ("gpt-2", "It's 12345 OK", ["It", "'s", " 12345", " OK"]),
        ("smollm", "It's 123 OK", ["It", "'s", " ", "1", "2", "3", " OK"]),
        ("llama-bpe", "IT'S 12345 x_y", ["IT", "'S", " ", "123", "45", " x", "_y"]),
        ("qwen2", "IT'S 123 x_y", ["IT", "'S", " ", "1", "2", "3", " x", "_y"]),
        ("tekken", "HelloWorld 12 a/b", ["Hello", "World", " ", "1", "2", " a", "/b"]),
    ],
)
def test_split_rules(tmp_path: Path, rule: str, text: str, pieces: list[str]) -> None:
    converted = read(tiny_llama().metadata | {"tokenizer.ggml.pre": rule}, tmp_path)
    splitter = Tokenizer.from_str(converted.tokenizer_json).pre_tokenizer
    assert splitter is not None
    assert [piece.replace("Ġ", " ") for piece, _ in splitter.pre_tokenize_str(text)] == pieces


def test_every_split_rule_builds(tmp_path: Path) -> None:
    for rule in SPLIT_RULES:
        converted = read(tiny_llama().metadata | {"tokenizer.ggml.pre": rule}, tmp_path)
        rebuilt = Tokenizer.from_str(converted.tokenizer_json)
        assert rebuilt.decode(encode(rebuilt, "the 12 tins")) == "the 12 tins"


@pytest.mark.parametrize(
    ("rule", "flag", "begins"),
    [("smollm", None, False), ("smollm", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_the_begin_token_is_added_as_the_file_or_its_rule_says(
    tmp_path: Path, rule: str, flag: bool | None, begins: bool
) -> None:
    metadata = tiny_llama().metadata | {"tokenizer.ggml.pre": rule}
    if flag is not None:
        metadata["tokenizer.ggml.add_bos_token"] = flag
    converted = read(metadata, tmp_path)
    assert (encode(Tokenizer.from_str(converted.tokenizer_json), "in")[0] == converted.bos_id) == begins


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path: Path) -> None:
    rebuilt = Tokenizer.from_str(read(tiny_llama().metadata, tmp_path).tokenizer_json)
    ids = encode(rebuilt, "<|im_start|><tool_call><|im_end|>")
    assert ids == [1, 3, 2]
    assert rebuilt.decode(ids) == "<tool_call>"
    assert rebuilt.decode(ids, skip_special_tokens=False) == "<|im_start|><tool_call><|im_end|>"


def test_end_tokens(tmp_path: Path) -> None:
    metadata = tiny_llama().metadata
    assert read(metadata, tmp_path).eos_ids == [2, 0]
    assert read(metadata | {"tokenizer.ggml.eot_token_id": 1}, tmp_path).eos_ids == [2, 1, 0]
    del metadata["tokenizer.ggml.eos_token_id"]
    assert read(metadata, tmp_path).eos_ids == [0, 2]


def test_mlx_lm_loads_it_with_its_template(tmp_path: Path) -> None:
    with open_gguf(tiny_llama().write(tmp_path / "m.gguf")) as file:
        plan_conversion(file).write(tmp_path)
    loaded: Any = load_tokenizer(tmp_path)
    ids = loaded.apply_chat_template([{"role": "user", "content": "the 12 <tool_call>"}])
    assert loaded.decode(ids) == "<|im_start|>the 12 <tool_call><|im_end|>"
    assert (loaded.bos_token_id, loaded.eos_token_id) == (1, 2)
    assert loaded.encode("the") == encode(Tokenizer.from_file(str(tmp_path / "tokenizer.json")), "the")


def changed(key: str, value: MetadataValue) -> TinyLlama:
    model = tiny_llama()
    model.metadata[f"tokenizer.ggml.{key}"] = value
    return model


@pytest.mark.parametrize(
    ("key", "value", "says"), [("model", "bert", "'bert'"), ("pre", "falcon", "'falcon'")]
)
def test_unknown_tokenizers_are_named(tmp_path: Path, key: str, value: str, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        read(changed(key, value).metadata, tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("tokens", ["a", "a"], "duplicate"),
        ("token_type", [1, 2], "2 token types for 265 tokens"),
        ("merges", [*MERGES, "zz z"], "'zz z'"),
        ("merges", ["the"], "'the'"),
        ("eos_token_id", 265, "eos token is outside"),
        ("bos_token_id", 9999, "bos token is outside"),
        ("model", "llama", "no tokenizer.ggml.scores"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, key: str, value: MetadataValue, says: str) -> None:
    with pytest.raises(CorruptModelError, match=says):
        read(changed(key, value).metadata, tmp_path)


def test_a_file_without_an_end_token_is_refused(tmp_path: Path) -> None:
    metadata = tiny_llama().metadata
    del metadata["tokenizer.ggml.eos_token_id"], metadata["tokenizer.ggml.token_type"]
    with pytest.raises(CorruptModelError, match="no end token"):
        read(metadata, tmp_path)
