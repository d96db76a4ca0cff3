"""A GGUF file's tokenizer as Hugging Face ``tokenizer.json`` and ``tokenizer_config.json``.

Two of llama.cpp's tokenizers are rebuilt: ``gpt2`` (byte-level BPE with merges, split by the rule that
``tokenizer.ggml.pre`` names) and ``llama`` (SentencePiece BPE, where piece scores rank the merges).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from mlxcel_trio.engine.models.gguf.reader import GgufFile, shown

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\u2581"

# Tokens that end a turn even where the file names another one as its end token.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>")


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How text is cut before merging. Without a ``pattern`` it is GPT-2's own."""

    pattern: str | None = None
    single_digits: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False


_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = SplitRule(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",
    ignore_merges=True,
    adds_bos=True,
)
_TEKKEN = SplitRule(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",
    ignore_merges=True,
    adds_bos=True,
)
_QWEN2 = SplitRule(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",
    nfc=True,
)
_SINGLE_DIGITS = SplitRule(single_digits=True)

# Keyed by the values of tokenizer.ggml.pre.
SPLIT_RULES: dict[str, SplitRule] = {
    "default": SplitRule(),
    "gpt-2": SplitRule(),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": _TEKKEN,
    "qwen2": _QWEN2,
}


@dataclass(frozen=True, slots=True)
class ConvertedTokenizer:
    """``tokenizer_json`` is the file's text; ``config`` is ``tokenizer_config.json``.

    ``bos_id`` may be ``None``; ``eos_ids`` has at least one id, the file's own first.
    """

    tokenizer_json: str
    config: dict[str, object]
    bos_id: int | None
    eos_ids: list[int]


def read_tokenizer(file: GgufFile) -> ConvertedTokenizer:
    """Rebuild the tokenizer of ``file``.

    Raises ``UnsupportedModelError`` naming a tokenizer or split rule that is not known,
    ``CorruptModelError`` for a vocabulary that contradicts itself.
    """
    tokens = file.texts("tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise file.corrupt("its vocabulary has duplicate tokens")
    types = file.numbers("tokenizer.ggml.token_type") if "tokenizer.ggml.token_type" in file else []
    if len(types) not in (0, len(tokens)):
        raise file.corrupt(f"it has {len(types)} token types for {len(tokens)} tokens")
    model = file.text("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer, adds_bos = _byte_level(file, vocabulary)
    elif model == "llama":
        tokenizer, adds_bos = _sentence_piece(file, tokens, vocabulary, types), True
    else:
        raise file.unsupported(f"its tokenizer is {shown(model)}; gpt2 and llama are supported")
    tokenizer.add_special_tokens(_added(tokens, types, _CONTROL))
    tokenizer.add_tokens(_added(tokens, types, _USER_DEFINED))
    bos_id = _token_id(file, "bos", tokens)
    if file.flag("tokenizer.ggml.add_bos_token", adds_bos) and bos_id is not None:
        _prepend(tokenizer, tokens[bos_id], bos_id)
    eos_ids = _eos_ids(file, tokens, types)
    return ConvertedTokenizer(tokenizer.to_str(), _config(file, tokens, bos_id, eos_ids), bos_id, eos_ids)


def _byte_level(file: GgufFile, vocabulary: dict[str, int]) -> tuple[Tokenizer, bool]:
    """BPE over bytes, and whether its texts begin with the begin token unless the file says otherwise."""
    name = file.text("tokenizer.ggml.pre", "default")
    rule = SPLIT_RULES.get(name)
    if rule is None:
        raise file.unsupported(
            f"its text is split by rule {shown(name)}; supported are {', '.join(SPLIT_RULES)}"
        )
    merges = [_merge(file, line, vocabulary) for line in file.texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=rule.ignore_merges))
    steps: list[pre_tokenizers.PreTokenizer] = []
    if rule.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule.adds_bos


def _merge(file: GgufFile, line: str, vocabulary: dict[str, int]) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
        raise file.corrupt(f"its merge {shown(line)} does not fit its vocabulary")
    return left, right


def _sentence_piece(
    file: GgufFile, tokens: list[str], vocabulary: dict[str, int], types: list[float]
) -> Tokenizer:
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise file.corrupt(f"it has {len(scores)} scores for {len(tokens)} tokens")
    unknown_id = file.integer(
        "tokenizer.ggml.unknown_token_id", types.index(_UNKNOWN) if _UNKNOWN in types else 0
    )
    if not 0 <= unknown_id < len(tokens):
        raise file.corrupt("its unknown token is outside its vocabulary")
    tokenizer = Tokenizer(
        BPE(
            vocabulary,
            _merges_by_score(tokens, vocabulary, scores),
            unk_token=tokens[unknown_id],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace_space = normalizers.Replace(" ", _SPACE)
    steps: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if file.flag("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace_space])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = normalizers.Sequence([replace_space])
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(
    tokens: list[str], vocabulary: dict[str, int], scores: list[float]
) -> list[tuple[str, str]]:
    """SentencePiece merges whichever neighbours form the piece with the best score.

    So every way to cut a piece into two pieces is a merge, ranked by that piece's score.
    """
    ranked = [
        (-scores[index], vocabulary[token[:cut]], vocabulary[token[cut:]])
        for index, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, left, right in ranked]


def _added(tokens: list[str], types: list[float], kind: int) -> list[AddedToken]:
    """The tokens of one type, to be found in text before it is split; ids stay as in the vocabulary."""
    return [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, token_type in zip(tokens, types, strict=False)
        if token_type == kind and token
    ]


def _prepend(tokenizer: Tokenizer, bos: str, bos_id: int) -> None:
    # In the template language "$" and ":" have a meaning; the parts given as a list have none.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["bos", "$A"], pair=["bos", "$A", "bos:1", "$B:1"],
        special_tokens=[{"id": "bos", "ids": [bos_id], "tokens": [bos]}],
    )  # fmt: skip


def _token_id(file: GgufFile, role: str, tokens: list[str]) -> int | None:
    key = f"tokenizer.ggml.{role}_token_id"
    if key not in file:
        return None
    index = file.integer(key)
    if not 0 <= index < len(tokens):
        raise file.corrupt(f"its {role} token is outside its vocabulary")
    return index


def _eos_ids(file: GgufFile, tokens: list[str], types: list[float]) -> list[int]:
    named = [_token_id(file, role, tokens) for role in ("eos", "eot", "eom")]
    known = [
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == _CONTROL and token in _END_OF_TURN
    ]
    ids = [index for index in (*named, *known) if index is not None]
    if not ids:
        raise file.corrupt("it names no end token")
    return list(dict.fromkeys(ids))


def _config(file: GgufFile, tokens: list[str], bos_id: int | None, eos_ids: list[int]) -> dict[str, object]:
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.integer("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[eos_ids[0]],
    }
    if bos_id is not None:
        config["bos_token"] = tokens[bos_id]
    for role, key in (("unknown", "unk_token"), ("padding", "pad_token")):
        if (index := _token_id(file, role, tokens)) is not None:
            config[key] = tokens[index]
    if "tokenizer.chat_template" in file:
        config["chat_template"] = file.text("tokenizer.chat_template")
    return config
