"""What templates demand is found out, and dialogues are brought into that form."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from support.small_tokenizers import CHATML, GEMMA, MISTRAL, byte_level

from mlxcel_trio.core.messages import ChatMessage, ToolCall
from mlxcel_trio.engine.chat_template import Notation, Renderer, TemplateTraits, arrange, probe
from mlxcel_trio.engine.markup import Markup
from mlxcel_trio.errors import UnsupportedModelError, one_line

MARKUP = Markup(byte_level())
LENIENT = TemplateTraits(
    system_role=True, user_first=False, short_call_ids=False, arguments="object", text_arguments=True
)
TOOL_LOOP = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
)


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def renderer(template: str) -> Renderer:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = json.dumps
    compiled = environment.from_string(template)

    def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: Any) -> str:
        special = {"bos_token": "<s>", "eos_token": "</s>"}
        return compiled.render(messages=messages, tools=tools, **special, **variables)

    return render


def calling(arguments_expression: str) -> str:
    return TOOL_LOOP.replace("CALL", arguments_expression.replace("ARGS", "c.function.arguments"))


def notation(traits: TemplateTraits) -> Notation:
    return Notation(traits, MARKUP, "|")


def user(content: str) -> ChatMessage:
    return ChatMessage("user", content)


def assistant(content: str, *calls: ToolCall, reasoning: str | None = None) -> ChatMessage:
    return ChatMessage("assistant", content, reasoning=reasoning, tool_calls=calls)


SYSTEM = ChatMessage("system", "Be kind.")


def test_a_lenient_template_takes_everything_as_it_is() -> None:
    assert probe(renderer(CHATML)) == LENIENT


def test_a_template_with_strict_turns_and_short_call_ids() -> None:
    traits = probe(renderer(MISTRAL))
    assert traits == TemplateTraits(
        system_role=True, user_first=True, short_call_ids=True, arguments="object", text_arguments=True
    )


def test_a_template_that_refuses_a_system_role() -> None:
    traits = probe(renderer(GEMMA))
    assert (traits.system_role, traits.user_first, traits.short_call_ids) == (False, True, False)


def test_a_template_that_drops_the_system_text_has_no_system_role() -> None:
    drops = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    assert not probe(renderer(drops)).system_role


@pytest.mark.parametrize(
    ("expression", "arguments", "text_arguments"),
    [
        ("{{ ARGS | tojson }}", "object", True),
        ("{{ ARGS if ARGS is string else ARGS | tojson }}", "object", True),
        ("{% for key, value in ARGS | items %}{{ key }}{{ value }}{% endfor %}", "object", False),
        ("{{ 'call: ' + ARGS + '.' }}", "text", True),
        ("{{ ARGS }}", "text", True),
    ],
)
def test_the_form_of_arguments(expression: str, arguments: str, text_arguments: bool) -> None:
    traits = probe(renderer(calling(expression)))
    assert (traits.arguments, traits.text_arguments) == (arguments, text_arguments)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('No\\nway.') }}", "message: No way. Pass"),
        ("{{ messages[0].content.missing.more }}", "no attribute 'missing'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("Hello", "leaves out the text"),
    ],
)
def test_a_template_that_does_not_work_is_refused_when_it_is_loaded(template: str, reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match="--chat-template-file") as caught:
        probe(renderer(template))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_system_text_leads_the_first_user_turn_where_there_is_no_system_role() -> None:
    traits = probe(renderer(GEMMA))
    assert arrange([SYSTEM, user("Hi"), assistant("Yes?")], traits) == [
        user("Be kind.\n\nHi"),
        assistant("Yes?"),
    ]
    assert arrange([SYSTEM, assistant("Yes?")], traits) == [user("Be kind."), assistant("Yes?")]
    assert arrange([SYSTEM], traits) == [user("Be kind.")]
    assert arrange([user("Hi")], traits) == [user("Hi")]
    assert arrange([], traits) == []


def test_an_empty_user_turn_goes_first_where_a_user_must() -> None:
    traits = probe(renderer(MISTRAL))
    assert arrange([SYSTEM, assistant("a"), user("b")], traits) == [
        SYSTEM,
        user(""),
        assistant("a"),
        user("b"),
    ]
    assert arrange([assistant("a"), user("b")], traits) == [user(""), assistant("a"), user("b")]
    assert arrange([SYSTEM, user("b")], traits) == [SYSTEM, user("b")]


def test_a_lenient_template_gets_the_turns_unchanged() -> None:
    turns = [SYSTEM, assistant("a"), user("b"), user("c")]
    assert arrange(turns, LENIENT) == turns


def test_reasoning_has_every_name_that_templates_read() -> None:
    (message,) = notation(LENIENT).messages([assistant("a", reasoning="hm</think>")])
    assert message == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "hm<|/think>",
        "thinking": "hm<|/think>",
        "reasoning": "hm<|/think>",
    }


@pytest.mark.parametrize("marker", ["<think>"])
def test_calls_and_results_in_the_notation_of_chat_completions(marker: str) -> None:
    call = ToolCall(f"call{marker}", f"f{marker}", json.dumps({f"k{marker}": marker}))
    asks, result = notation(LENIENT).messages(
        [assistant("", call), ChatMessage("tool", marker, call_id=call.call_id)]
    )
    function = {"name": "f<|think>", "arguments": {"k<|think>": "<|think>"}}
    assert asks["tool_calls"] == [{"id": "call<|think>", "type": "function", "function": function}]
    assert result == {
        "role": "tool",
        "content": "<|think>",
        "tool_call_id": "call<|think>",
        "name": "f<|think>",
    }


def test_a_result_whose_call_is_not_in_the_dialogue_has_no_name() -> None:
    (message,) = notation(LENIENT).messages([ChatMessage("tool", "4", call_id="call_1")])
    assert message == {"role": "tool", "content": "4", "tool_call_id": "call_1"}


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "not json",
        "[1]",
        '"text"',
        '{"a": 1',
        '{"a": "\\ud800"}',
        '{"a": NaN}',
        '{"a":' * 70 + "1" + "}" * 70,
    ],
)
def test_arguments_that_are_no_json_object_stay_text(arguments: str) -> None:
    def written(traits: TemplateTraits) -> Any:
        (message,) = notation(traits).messages([assistant("", ToolCall("c", "f", arguments))])
        return message["tool_calls"][0]["function"]["arguments"]

    items_only = probe(renderer(calling("{% for key, value in ARGS | items %}{{ key }}{% endfor %}")))
    assert written(LENIENT) == arguments
    assert written(items_only) == {"arguments": arguments}


def test_objects_stay_text_where_the_template_wants_text() -> None:
    traits = probe(renderer(calling("{{ 'call: ' + ARGS }}")))
    (message,) = notation(traits).messages([assistant("", ToolCall("c", "f", '{"a":1}'))])
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a":1}'


def test_short_call_ids_are_the_same_for_call_and_result_and_in_every_rendering() -> None:
    traits = probe(renderer(MISTRAL))
    ids = ["call_0123456789abcdef", "call_fedcba9876543210", "abcDEF123", "<think>"]
    dialogue = [assistant("", *(ToolCall(id_, "f", "{}") for id_ in ids))]
    dialogue += [ChatMessage("tool", "x", call_id=id_) for id_ in ids]
    asks, *results = notation(traits).messages(dialogue)
    short = [call["id"] for call in asks["tool_calls"]]
    assert [result["tool_call_id"] for result in results] == short
    assert all(len(id_) == 9 and id_.isalnum() for id_ in short)
    assert len(set(short)) == len(ids)
    assert short[2] == "abcDEF123"
    again, *_ = notation(traits).messages(dialogue)
    assert [call["id"] for call in again["tool_calls"]] == short


def test_two_call_ids_never_share_a_short_one() -> None:
    traits = probe(renderer(MISTRAL))
    (first,) = notation(traits).messages([ChatMessage("tool", "", call_id="call_1")])
    taken = first["tool_call_id"]
    both = notation(traits).messages([ChatMessage("tool", "", call_id=id_) for id_ in ("call_1", taken)])
    assert both[0]["tool_call_id"] != both[1]["tool_call_id"]


def test_tools_flat_or_nested_are_nested_for_the_template() -> None:
    parameters = {"type": "object", "properties": {"<think>": {"type": "string", "description": "a</s>"}}}
    function = {"name": "f", "description": "d<s>", "parameters": parameters, "strict": True}
    expected = {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d<|s>",
            "parameters": {
                "type": "object",
                "properties": {"<|think>": {"type": "string", "description": "a<|/s>"}},
            },
        },
    }
    flat = {"type": "function", **function}
    nested = {"type": "function", "function": function}
    assert notation(LENIENT).tools([flat, nested]) == [expected, expected]


def test_a_tool_without_description_and_parameters() -> None:
    (tool,) = notation(LENIENT).tools(
        [{"type": "function", "name": "f", "description": None, "parameters": None}]
    )
    assert tool["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


def test_one_line_is_short_and_never_empty() -> None:
    assert one_line(ValueError(" a\n b.")) == "a b"
    assert one_line(ValueError()) == "ValueError"
    assert one_line(ValueError("a01b01"), without="01") == "ab"
    assert len(one_line(ValueError("x" * 1000))) == 300
