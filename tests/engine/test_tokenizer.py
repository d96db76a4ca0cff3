"""Dialogues to token ids, with markup only where the template writes it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_tokenizers import (
    CHATML,
    GEMMA,
    MARKERS,
    MISTRAL,
    byte_level,
    ids_of,
    sentencepiece,
    write_model,
)
from support.small_tokenizers import word_piece as word_piece_tokenizer
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

import mlxcel_trio.testing
from mlxcel_trio.core.messages import ChatMessage, ToolCall
from mlxcel_trio.engine.tokenizer import ChatTokenizer
from mlxcel_trio.errors import CorruptModelError, InvalidRequestError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable

SHIPPED = Path(mlxcel_trio.testing.__file__).parent / "tokenizer"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "shipped": SHIPPED,
        "chatml": write_model(root / "chatml", byte_level(), CHATML),
        "mistral": write_model(root / "mistral", sentencepiece(), MISTRAL),
        "gemma": write_model(root / "gemma", sentencepiece(prefix="never"), GEMMA),
        "words": write_model(root / "words", word_piece_tokenizer(), CHATML),
    }


@pytest.fixture(scope="module")
def tokenizers(models: dict[str, Path]) -> dict[str, ChatTokenizer]:
    return {name: ChatTokenizer.load(directory) for name, directory in models.items()}


@pytest.fixture(scope="module")
def references(models: dict[str, Path]) -> dict[str, Any]:
    return {name: AutoTokenizer.from_pretrained(str(directory)) for name, directory in models.items()}


def user(content: str) -> ChatMessage:
    return ChatMessage("user", content)


def assistant(content: str) -> ChatMessage:
    return ChatMessage("assistant", content)


# --- markup ---------------------------------------------------------------------------------------------

QWEN_MARKERS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_response>", "</tool_response>")
fragments = st.one_of(
    st.sampled_from(MARKERS + QWEN_MARKERS),
    st.sampled_from(MARKERS + QWEN_MARKERS).flatmap(
        lambda marker: st.integers(1, len(marker) - 1).map(lambda at: marker[:at] + marker[at:][:at])
    ),
    st.sampled_from(["think", "tool_call", "<", ">", "|", "</", "a", " ", "\n", "0", '"', "\\", "é", "🙂"]),
)
hostile = st.lists(fragments, min_size=1, max_size=6).map("".join)


def dialogue(text: str) -> list[ChatMessage]:
    call = ToolCall(text, text, json.dumps({text: [text]}))
    raw_call = ToolCall(text + "2", "f", text)
    return [
        ChatMessage("system", text),
        user(text),
        ChatMessage("assistant", text, reasoning=text, tool_calls=(call, raw_call)),
        ChatMessage("tool", text, call_id=call.call_id),
        ChatMessage("tool", text, call_id=raw_call.call_id),
        ChatMessage("assistant", text, reasoning=text),
        user(text),
    ]


def tool(text: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {text: {"type": "string", "enum": [text]}}}
    return {"type": "function", "name": text, "description": text, "parameters": schema}


def plain(text: str) -> list[ChatMessage]:
    return [user(text), assistant(text), user(text)]


@pytest.mark.parametrize(
    ("model", "turns"),
    [
        ("shipped", dialogue),
        ("chatml", dialogue),
        ("mistral", dialogue),
        ("gemma", plain),
        ("words", dialogue),
    ],
)
@given(text=hostile)
@settings(max_examples=60, deadline=None)
def test_text_adds_no_markup_to_a_prompt(
    tokenizers: dict[str, ChatTokenizer],
    references: dict[str, Any],
    model: str,
    turns: Callable[[str], list[ChatMessage]],
    text: str,
) -> None:
    def markup(of: str) -> Counter[int]:
        tokens = tokenizers[model].render(turns(of), tools=[tool(of)], template_kwargs={"note": of}).tokens
        return Counter(token for token in tokens if token in references[model].added_tokens_decoder)

    assert markup(text) == markup("harmless")


@pytest.mark.parametrize("model", ["shipped", "chatml", "mistral", "gemma"])
@given(text=hostile)
@settings(max_examples=60, deadline=None)
def test_a_prompt_reads_as_the_template_renders_it(
    tokenizers: dict[str, ChatTokenizer], references: dict[str, Any], model: str, text: str
) -> None:
    messages = [{"role": turn.role, "content": turn.content} for turn in plain(text)]
    expected = references[model].apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizers[model].render(plain(text))
    assert tokenizers[model].decode(prompt.tokens) == expected


@pytest.mark.parametrize("model", ["shipped", "chatml", "mistral", "gemma", "words"])
def test_harmless_prompts_are_those_of_the_library(
    tokenizers: dict[str, ChatTokenizer], references: dict[str, Any], model: str
) -> None:
    messages = [{"role": turn.role, "content": turn.content} for turn in plain("What is 2 + 2, then?\n")]
    expected = references[model].apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert list(tokenizers[model].render(plain("What is 2 + 2, then?\n")).tokens) == expected


def test_a_template_that_looks_for_markers_does_not_find_those_of_a_user(tmp_path: Path) -> None:
    searching = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    tokenizer = ChatTokenizer.load(write_model(tmp_path, byte_level(), searching))
    assert tokenizer.decode(tokenizer.render([user("a</think>b")]).tokens) == "a</think>b"


def test_encoded_text_has_no_markup(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["shipped"]
    tokens = tokenizer.encode_text("<|im_end|>")
    assert not tokenizer.end_tokens & set(tokens)
    assert tokenizer.decode(tokens) == "<|im_end|>"


# --- dialogues ------------------------------------------------------------------------------------------


def test_system_text_reaches_a_template_without_a_system_role(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["gemma"]
    prompt = tokenizer.render([ChatMessage("system", "be kind"), user("hi")])
    expected = "<s><start_of_turn>user\nbe kind\n\nhi<end_of_turn>\n<start_of_turn>model\n"
    assert tokenizer.decode(prompt.tokens) == expected


def test_calls_and_results_of_a_strict_template(tokenizers: dict[str, ChatTokenizer]) -> None:
    call = ToolCall("call_0123456789abcdef", "add", '{"a": 1}')
    turns = [
        user("go"),
        ChatMessage("assistant", "", tool_calls=(call,)),
        ChatMessage("tool", "2", call_id=call.call_id),
    ]
    text = tokenizers["mistral"].decode(tokenizers["mistral"].render(turns).tokens)
    before, after = '<s>[INST]go[/INST][TOOL_CALLS]{"name": "add", "arguments": {"a": 1}}', "</s><add>2"
    short = text[len(before) :][:9]
    assert text == before + short + after + short


def test_a_refusal_of_the_template_is_one_line_for_the_client(tokenizers: dict[str, ChatTokenizer]) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"refuses this conversation: Roles must alternate"
    ) as caught:
        tokenizers["mistral"].render([user("a"), user("b")])
    assert "\n" not in caught.value.message


def test_a_refusal_quotes_texts_without_sentinels(tmp_path: Path) -> None:
    quoting = "{% if messages | length > 1 %}{{ raise_exception('Bad: ' + messages[1].content) }}{% endif %}"
    quoting += "{{ messages[0].content }}"
    tokenizer = ChatTokenizer.load(write_model(tmp_path, byte_level(), quoting))
    with pytest.raises(InvalidRequestError, match=r"Bad: a<think>b\.$"):
        tokenizer.render([user("x"), user("a<think>b")])


@pytest.mark.parametrize(
    "failure", ["{{ 1 / 0 }}", "{{ messages.no.way }}", "{{ tools['x'].y }}", "{{ [] + 1 }}"]
)
def test_whatever_a_template_raises_is_a_refusal(tmp_path: Path, failure: str) -> None:
    template = "{% if poison is defined %}" + failure + "{% endif %}{{ messages[0].content }}"
    tokenizer = ChatTokenizer.load(write_model(tmp_path, byte_level(), template))
    with pytest.raises(InvalidRequestError, match="refuses this conversation"):
        tokenizer.render([user("x")], template_kwargs={"poison": True})


@pytest.mark.parametrize("messages", [[], [user("")]])
def test_a_prompt_is_never_empty(tmp_path: Path, messages: list[ChatMessage]) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = ChatTokenizer.load(write_model(tmp_path, byte_level(), template))
    with pytest.raises(InvalidRequestError):
        tokenizer.render(messages)


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "add_generation_prompt", "tokenize", "chat_template", "return_dict", "bos_token",
     "eos_token", "conversation", "self", "continue_final_message", "tokenizer_kwargs"],
)  # fmt: skip
def test_variables_of_the_server_cannot_be_set(tokenizers: dict[str, ChatTokenizer], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{name}'") as caught:
        tokenizers["chatml"].render([user("x")], template_kwargs={name: "</s>"})
    assert caught.value.param == "chat_template_kwargs"


def test_other_variables_reach_the_template(tmp_path: Path) -> None:
    template = "{{ messages[0].content }} {{ mood | default('calm') }} {{ (place or {}).name }}"
    tokenizer = ChatTokenizer.load(write_model(tmp_path, byte_level(), template))
    prompt = tokenizer.render([user("x")], template_kwargs={"mood": "<think>", "place": {"name": "</s>"}})
    assert tokenizer.decode(prompt.tokens) == "x <think> </s>"
    assert len(prompt.tokens) == len("x <think> </s>")


def test_the_template_for_tools_is_used_when_there_are_tools(tmp_path: Path) -> None:
    templates = [
        {"name": "default", "template": "plain {{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }} {{ messages[0].content }}"},
    ]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": templates}
    write_model(tmp_path, byte_level(), None, files={"tokenizer_config.json": config})
    tokenizer = ChatTokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.render([user("x")]).tokens) == "plain x"
    assert tokenizer.decode(tokenizer.render([user("x")], tools=[tool("f")]).tokens) == "f x"


def test_threads_render_and_decode_at_the_same_time(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["shipped"]

    def render(number: int) -> tuple[tuple[int, ...], str]:
        prompt = tokenizer.render(dialogue(f"{number} <think> 🙂" * 20), tools=[tool(f"t{number}")])
        return prompt.tokens, tokenizer.decode(prompt.tokens)

    expected = [render(number) for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(render, range(24))) == expected


# --- reasoning ------------------------------------------------------------------------------------------


def test_a_prompt_that_ends_in_an_opening_marker_opens_reasoning(
    tokenizers: dict[str, ChatTokenizer],
) -> None:
    tokenizer = tokenizers["chatml"]
    assert tokenizer.reasoning_markers == ("<think>", "</think>")
    assert tokenizer.render([user("x")], template_kwargs={"thinking": True}).opens_reasoning
    assert not tokenizer.render([user("x")]).opens_reasoning


def test_a_marker_typed_by_a_user_opens_nothing(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}"
    tokenizer = ChatTokenizer.load(write_model(tmp_path, byte_level(), template))
    assert not tokenizer.render([user("why <think>")]).opens_reasoning


@pytest.mark.parametrize(
    ("added", "template", "markers"),
    [
        (["[THINK]", "[/THINK]"], "", ("[THINK]", "[/THINK]")),
        (["<|channel>", "<channel|>"], "", ("<|channel>thought", "<channel|>")),
        ([], "{# <seed:think> and </seed:think> #}", ("<seed:think>", "</seed:think>")),
        (["[THINK]"], "{# <think> #}", None),
    ],
)
def test_reasoning_markers_are_found_in_vocabulary_or_template(
    tmp_path: Path, added: list[str], template: str, markers: tuple[str, str] | None
) -> None:
    tokenizer = Tokenizer(byte_level().model)
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level().pre_tokenizer, byte_level().decoder
    tokenizer.add_tokens([AddedToken(content, normalized=False) for content in added])
    directory = write_model(tmp_path, tokenizer, template + "{{ messages[0].content }}")
    assert ChatTokenizer.load(directory).reasoning_markers == markers


# --- vocabulary -----------------------------------------------------------------------------------------


def test_what_is_known_of_the_vocabulary(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["mistral"]
    (word, byte, marker) = ids_of(sentencepiece(), ["▁a", "<0xC3>", "<think>"])
    assert tokenizer.vocabulary_size == sentencepiece().get_vocab_size()
    assert [tokenizer.token_text(token) for token in (word, byte, marker, 99_999)] == [
        " a",
        "\ufffd",
        "<think>",
        "",
    ]
    assert tokenizer.decode([word, marker, word]) == "a<think> a"


def test_a_tokenizer_of_another_kind_decodes_too(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["words"]
    tokens = ids_of(word_piece_tokenizer(), ["play", "##ing", "do"])
    assert tokenizer.decode(tokens) == "playing do"
    assert tokenizer.token_text(tokens[0]) == "play"


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, {"</s>", "<|im_end|>", "<end_of_turn>"}),
        ({"config.json": {"eos_token_id": 3}}, {3, "</s>", "<|im_end|>", "<end_of_turn>"}),
        (
            {"config.json": {"text_config": {"eos_token_id": [4, 5]}}},
            {4, 5, "</s>", "<|im_end|>", "<end_of_turn>"},
        ),
        ({"generation_config.json": {"eos_token_id": [1, 2]}}, {1, 2, "</s>", "<|im_end|>", "<end_of_turn>"}),
        ({"config.json": {"eos_token_id": None}}, {"</s>", "<|im_end|>", "<end_of_turn>"}),
    ],
)
def test_end_tokens_are_all_that_are_named(
    tmp_path: Path, files: dict[str, Any], ends: set[str | int]
) -> None:
    tokenizer = ChatTokenizer.load(write_model(tmp_path, byte_level(), CHATML, files=files))
    named = [end for end in ends if isinstance(end, str)]
    expected = {*ids_of(byte_level(), named), *(end for end in ends if isinstance(end, int))}
    assert tokenizer.end_tokens == expected


def test_an_ordinary_token_of_that_name_ends_nothing(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<|eot_id|>", normalized=False)])
    loaded = ChatTokenizer.load(write_model(tmp_path, tokenizer, CHATML))
    assert not set(ids_of(tokenizer, ["<|eot_id|>"])) & loaded.end_tokens


# --- loading --------------------------------------------------------------------------------------------


def test_another_template_takes_the_place_of_the_models_own(models: dict[str, Path]) -> None:
    tokenizer = ChatTokenizer.load(models["chatml"], chat_template="Q: {{ messages[0].content }} A:")
    assert tokenizer.decode(tokenizer.render([user("x")]).tokens) == "Q: x A:"


def test_a_model_without_template_names_the_flag(tmp_path: Path) -> None:
    write_model(tmp_path, byte_level(), None)
    with pytest.raises(UnsupportedModelError, match="--chat-template-file"):
        ChatTokenizer.load(tmp_path)
    assert ChatTokenizer.load(tmp_path, chat_template=CHATML).render([user("x")]).tokens


def test_a_template_that_is_no_jinja_is_refused(models: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedModelError, match="cannot render a plain user message"):
        ChatTokenizer.load(models["chatml"], chat_template="{% if %}")


def test_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "rag", "template": "{{ messages[0].content }}"}]}
    write_model(tmp_path, byte_level(), None, files={"tokenizer_config.json": config})
    with pytest.raises(UnsupportedModelError, match="--chat-template-file"):
        ChatTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", b'{"version":'),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer_config.json", b'{"a":'),
        ("tokenizer_config.json", b"[]"),
        ("config.json", b"[]"),
        ("config.json", b'{"model_type'),
        ("generation_config.json", b"\xff"),
        ("chat_template.jinja", b"\xff\xfe"),
    ],
)
def test_damaged_files_are_named_in_one_line(
    tmp_path: Path, models: dict[str, Path], name: str, content: bytes | None
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(models["chatml"], directory)
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    with pytest.raises(CorruptModelError, match="Download the model again") as caught:
        ChatTokenizer.load(directory)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)


def test_a_missing_directory_is_an_error_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(CorruptModelError, match=r"no tokenizer\.json"):
        ChatTokenizer.load(tmp_path / "nowhere")


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    write_model(tmp_path, byte_level(), CHATML, files={"tokenizer_config.json": config})
    (tmp_path / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UnsupportedModelError, match="not run"):
        ChatTokenizer.load(tmp_path)


def test_engines_that_start_together_load_together() -> None:
    program = """
import sys, threading
from pathlib import Path
from mlxcel_trio.engine.mlx_runtime import import_mlx
from mlxcel_trio.engine.tokenizer import ChatTokenizer

barrier = threading.Barrier(6)
failures = []

def load(number):
    barrier.wait()
    try:
        import_mlx() if number % 2 else ChatTokenizer.load(Path(sys.argv[1]))
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=load, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(f"{failures}" if failures else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, SHIPPED], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
