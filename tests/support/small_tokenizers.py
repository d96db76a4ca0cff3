"""Tokenizers of the kinds that models bring, small enough to build in a test, and chat templates."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SPECIAL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "[INST]",
    "[/INST]",
    "<start_of_turn>",
    "<end_of_turn>",
)
# The last three can overlap each other.
NOT_SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<x|", "|x|", "|y>")
MARKERS = (*SPECIAL, *NOT_SPECIAL)

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}
    {{- message.content | trim }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if thinking is defined and thinking %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}"""

# Turns must alternate, call ids have nine letters and digits.
MISTRAL = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content + '\\n\\n' %}{%- set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}{%- set turns = messages %}
{%- endif %}
{%- set count = namespace(of=0) %}
{%- for message in turns %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {%- if (message.role == 'user') != (count.of % 2 == 0) %}
            {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
        {%- endif %}
        {%- set count.of = count.of + 1 %}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST]' + (system if loop.first else '') + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS]' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('Bad call id!') }}{%- endif %}
            {{- call.function | tojson + call.id }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id | length != 9 %}{{- raise_exception('Bad call id!') }}{%- endif %}
        {{- '<' + message.name + '>' + message.content + message.tool_call_id }}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

# Knows no system role; a user begins.
GEMMA = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""


def byte_level() -> Tokenizer:
    """Byte-level BPE without merges: a token for every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: position for position, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_markers(tokenizer)


def sentencepiece(*, prefix: str = "first") -> Tokenizer:
    """SentencePiece BPE with byte fallback.

    ``prefix`` tells where a space goes before a word: ``first`` at the beginning of a text, ``always`` after
    every marker too, as the first Llama models have it, ``never``.
    """
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz<>[]|/_"]
    merges = [("t", "h"), ("▁", "a"), ("<", "|"), ("|", ">")]
    tokens += ["".join(pair) for pair in merges]
    vocabulary = {token: position for position, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True))
    if prefix == "always":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps if prefix == "never" else [*steps, decoders.Strip(" ", 1, 0)])
    return _with_markers(tokenizer)


def normalising() -> Tokenizer:
    """Recognises added tokens in lower-cased NFKC form."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.add_tokens(
        [AddedToken("<loud>", normalized=True), AddedToken("<mask>", normalized=True, lstrip=True)]
    )
    return tokenizer


def word_piece(*, cleanup: bool = False) -> Tokenizer:
    """Words and word ends; spaces appear between tokens only when they are decoded together."""
    tokens = ["[UNK]", "play", "##ing", "##s", "do", "not", ".", ",", "é"]
    vocabulary = {token: position for position, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    return _with_markers(tokenizer)


def write_model(
    directory: Path, tokenizer: Tokenizer, template: str | None, *, files: Mapping[str, Any] | None = None
) -> Path:
    """A model directory as far as a tokenizer reads it; ``files`` are further JSON files by name."""
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    for name, content in ({"tokenizer_config.json": config} | dict(files or {})).items():
        (directory / name).write_text(json.dumps(content))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory


def _with_markers(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in SPECIAL])
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in NOT_SPECIAL])
    return tokenizer


def ids_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """The ids of tokens given by their text."""
    found = [tokenizer.token_to_id(text) for text in texts]
    assert None not in found
    return [token for token in found if token is not None]
