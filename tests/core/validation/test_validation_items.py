"""Input: strings, items of every type, their parts, and what is refused with which path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxcel_trio.core.plan import CreatePlan
from mlxcel_trio.core.validation import check_not_empty, check_tool_pairing
from mlxcel_trio.core.validation.items import read_input
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.items import InputItem, InputPart

Validate = Callable[..., CreatePlan]
Refusal = Callable[..., InvalidRequestError]

USER = {"type": "message", "role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "get_tide", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "3 m"}
REASONING = {"type": "reasoning", "summary": []}
COMPACTION = {"type": "compaction", "encrypted_content": "e30"}
REFERENCE = {"type": "item_reference", "id": "msg_1"}
ITEMS = [USER, CALL, OUTPUT, REASONING, COMPACTION, REFERENCE]

TYPES = ["message", "function_call", "function_call_output", "reasoning", "compaction", "item_reference"]


def text(kind: str, value: str = "x") -> dict[str, str]:
    return {"type": kind, "text": value}


def test_a_string_is_one_user_message(validate: Validate) -> None:
    assert validate(input="hello").items == (InputItem(type="message", role="user", content="hello"),)


def test_items_keep_their_order_and_get_their_type(validate: Validate) -> None:
    plan = validate(
        input=[{"role": "user", "content": "a"}, CALL, OUTPUT, {"role": "assistant", "content": "b"}]
    )
    assert [item.type for item in plan.items] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert plan.items[0] == InputItem(type="message", role="user", content="a")
    assert plan.items[1] == InputItem(type="function_call", call_id="c1", name="get_tide", arguments="{}")


@pytest.mark.parametrize("item", ITEMS, ids=TYPES)
@pytest.mark.parametrize("item_id", ["", "msg_from_elsewhere", "x" * 500, None])
@pytest.mark.parametrize("status", ["in_progress", "completed", "incomplete", None])
def test_ids_and_statuses_come_back(
    item: dict[str, Any], item_id: str | None, status: str | None, validate: Validate
) -> None:
    extra = {"status": status, "phase": None, "unknown_key": [1]} | ({} if "id" in item else {"id": item_id})
    plan = validate(
        input=[USER, CALL | {"call_id": "c0"}, CALL, item | extra] if item is OUTPUT else [USER, item | extra]
    )
    assert plan.items[-1].type == item["type"]
    assert plan.items[-1].status == status


@pytest.mark.parametrize("item", ITEMS, ids=TYPES)
@pytest.mark.parametrize("status", ["", "done", "failed"])
def test_an_unknown_status_is_refused(item: dict[str, Any], status: str, refusal: Refusal) -> None:
    error = refusal(input=[USER, item | {"status": status}])
    assert error.param == "input[1].status"
    assert "'in_progress', 'completed', 'incomplete'" in error.message


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
@pytest.mark.parametrize("typed", [{}, {"type": None}, {"type": "message"}])
@pytest.mark.parametrize("content", ["x", "", [], [text("text")], [text("input_text"), text("text", "")]])
def test_messages(role: str, typed: dict[str, Any], content: object, validate: Validate) -> None:
    (_, item) = validate(input=[USER, {"role": role, "content": content} | typed]).items
    assert item.type == "message"
    assert item.role == role


@pytest.mark.parametrize("typed", [{}, {"type": None}, {"type": "item_reference"}])
def test_a_reference_needs_nothing_but_an_id(typed: dict[str, Any], validate: Validate) -> None:
    (item,) = validate(input=[{"id": "msg_1", "unknown_key": 1} | typed]).items
    assert item == InputItem(type="item_reference", id="msg_1")


def test_assistant_parts_of_a_replayed_output(validate: Validate) -> None:
    parts = [
        text("output_text", "a") | {"annotations": [], "logprobs": []},
        text("output_text", "b") | {"annotations": None, "logprobs": None},
        {"type": "refusal", "refusal": "no"},
    ]
    (item, _) = validate(input=[{"role": "assistant", "content": parts}, USER]).items
    assert item.content == [
        InputPart(type="output_text", text="a"),
        InputPart(type="output_text", text="b"),
        InputPart(type="refusal", refusal="no"),
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        # types
        ({}, "type"),
        ({"type": None}, "type"),
        ({"id": None}, "type"),
        ({"id": ""}, "type"),
        ({"id": "msg_1", "content": "x"}, "type"),
        ({"id": "fc_1", "call_id": "c"}, "type"),
        ({"content": "x"}, "type"),
        ({"type": ""}, "type"),
        ({"type": "Message", "role": "user", "content": "x"}, "type"),
        ({"type": "configuration_update"}, "type"),
        ({"type": "computer_call_output", "call_id": "c"}, "type"),
        ({"type": "mcp_call", "id": "m", "name": "n"}, "type"),
        ({"type": 1}, "type"),
        # messages
        ({"type": "message", "content": "x"}, "role"),
        ({"type": "message", "role": None, "content": "x"}, "role"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "", "content": "x"}, "role"),
        ({"role": 1, "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "user", "content": 1}, "content"),
        ({"role": "user", "content": {"type": "input_text"}}, "content"),
        ({"role": "user", "content": ["x"]}, "content[0]"),
        ({"role": "user", "content": [{}]}, "content[0].type"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0].type"),
        ({"role": "user", "content": [text("input_text"), text("output_text")]}, "content[1].type"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "content[0].type"),
        ({"role": "system", "content": [text("output_text")]}, "content[0].type"),
        ({"role": "developer", "content": [text("reasoning_text")]}, "content[0].type"),
        ({"role": "assistant", "content": [text("summary_text")]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "input_text", "text": None}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "input_text", "text": 1}]}, "content[0].text"),
        ({"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}, "content[0].refusal"),
        # calls
        (CALL | {"call_id": None}, "call_id"),
        (CALL | {"call_id": ""}, "call_id"),
        (CALL | {"name": None}, "name"),
        (CALL | {"name": ""}, "name"),
        (CALL | {"arguments": None}, "arguments"),
        (CALL | {"arguments": {"a": 1}}, "arguments"),
        # outputs
        ({"type": "function_call_output", "output": "x"}, "call_id"),
        (OUTPUT | {"call_id": ""}, "call_id"),
        (OUTPUT | {"output": None}, "output"),
        (OUTPUT | {"output": {"a": 1}}, "output"),
        (OUTPUT | {"output": [text("refusal")]}, "output[0].type"),
        (OUTPUT | {"output": [text("input_text"), {"type": "output_text"}]}, "output[1].text"),
        # reasoning
        (REASONING | {"content": "x"}, "content"),
        (REASONING | {"content": [text("output_text")]}, "content[0].type"),
        (REASONING | {"content": [{"type": "reasoning_text"}]}, "content[0].text"),
        (REASONING | {"summary": [text("reasoning_text")]}, "summary[0].type"),
        (REASONING | {"summary": "x"}, "summary"),
        # stand-ins
        ({"type": "compaction"}, "encrypted_content"),
        (COMPACTION | {"encrypted_content": ""}, "encrypted_content"),
        ({"type": "item_reference"}, "id"),
        (REFERENCE | {"id": ""}, "id"),
    ],
    ids=repr,
)
def test_refused_with_the_exact_path(item: dict[str, Any], param: str, refusal: Refusal) -> None:
    error = refusal(input=[USER, item])
    assert error.param == f"input[1].{param}"
    assert error.code is None


@pytest.mark.parametrize("value", [1, True, {"type": "message"}, [1], ["x"], [None], [[]]])
def test_input_of_a_wrong_type(value: object, refusal: Refusal) -> None:
    assert (refusal(input=value).param or "").startswith("input")


def test_an_unknown_type_is_named_with_those_that_exist(refusal: Refusal) -> None:
    message = refusal(input=[{"type": "web_search_call"}]).message
    assert all(f"'{name}'" in message for name in ["web_search_call", *TYPES])


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
@pytest.mark.parametrize(
    ("place", "item"),
    [
        ("content", {"role": "user"}),
        ("content", {"role": "assistant"}),
        ("content", {"role": "developer"}),
        ("output", {"type": "function_call_output", "call_id": "c1"}),
    ],
)
def test_media_is_refused_with_its_own_code(
    kind: str, place: str, item: dict[str, Any], refusal: Refusal
) -> None:
    part = {
        "type": kind,
        "image_url": "http://127.0.0.1:9/none.png",
        "file_id": None,
        "input_audio": {"data": ""},
    }
    error = refusal(input=[CALL, item | {place: [text("input_text"), part]}])
    assert error.param == f"input[1].{place}[1].type"
    assert error.code == "unsupported_media"
    assert kind in error.message


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning"},
        {"type": "reasoning", "content": None, "summary": None, "encrypted_content": None},
        {"type": "reasoning", "summary": [], "encrypted_content": "opaque"},
        {"type": "reasoning", "summary": [text("summary_text")]},
        {"type": "reasoning", "content": [text("reasoning_text"), text("text")]},
    ],
)
def test_reasoning(item: dict[str, Any], validate: Validate) -> None:
    assert validate(input=[USER, item]).items[1].type == "reasoning"


@pytest.mark.parametrize(
    "output", ["", "x", [], [text("input_text", "Ada"), text("output_text", "Mira"), text("text", "")]]
)
def test_tool_outputs(output: object, validate: Validate) -> None:
    assert len(validate(input=[USER, CALL, OUTPUT | {"output": output}]).items) == 3


@pytest.mark.parametrize("arguments", ["", "{}", '{"harbour": ', "not json", "[]"])
def test_arguments_are_any_text(arguments: str, validate: Validate) -> None:
    assert validate(input=[USER, CALL | {"arguments": arguments}]).items[1].arguments == arguments


def call(call_id: str) -> dict[str, Any]:
    return CALL | {"call_id": call_id}


def output(call_id: str) -> dict[str, Any]:
    return OUTPUT | {"call_id": call_id}


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([call("a"), output("a")], None),
        ([call("a"), call("b"), output("b"), output("a")], None),
        ([call("a"), USER, output("a")], None),
        ([call("a")], None),
        ([call("a"), USER, call("b"), output("b")], None),
        ([output("a")], "input[0].call_id"),
        ([call("a"), output("b")], "input[1].call_id"),
        ([output("a"), call("a")], "input[0].call_id"),
        ([call("a"), call("a")], "input[1].call_id"),
        ([call("a"), output("a"), call("a"), output("a")], "input[2].call_id"),
        ([call("a"), output("a"), output("a")], "input[2].call_id"),
    ],
)
def test_pairing(items: list[Any], param: str | None, validate: Validate) -> None:
    read = validate(input=items).items
    if param is None:
        check_tool_pairing(read)
        return
    for path in ("input", "items"):
        with pytest.raises(InvalidRequestError) as caught:
            check_tool_pairing(read, path=path)
        assert caught.value.param == param.replace("input", path)


@pytest.mark.parametrize("chain", [{}, {"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
@pytest.mark.parametrize("value", [[], "", [OUTPUT], [CALL, CALL], [REASONING]], ids=repr)
def test_what_only_the_whole_dialogue_can_tell_is_not_judged(
    chain: dict[str, str], value: object, validate: Validate
) -> None:
    assert validate(input=value, **chain).items == validate(input=value).items


def test_pairing_against_a_history() -> None:
    def item(kind: str, call_id: str) -> InputItem:
        return InputItem(type=kind, call_id=call_id)

    open_call, answered = item("function_call", "a"), item("function_call", "b")
    history = [open_call, answered, item("function_call_output", "b")]
    check_tool_pairing([item("function_call_output", "a"), item("function_call", "c")], history=history)
    for wrong in (
        item("function_call_output", "b"),
        item("function_call_output", "c"),
        item("function_call", "a"),
        item("function_call", "b"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            check_tool_pairing([InputItem(type="message", role="user", content="x"), wrong], history=history)
        assert caught.value.param == "input[1].call_id"


EMPTY: list[Any] = [
    "",
    "   ",
    " \n\t\u00a0",
    [],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [text("input_text", " ")]}, {"role": "assistant", "content": "\n"}],
    [{"role": "system", "content": " "}],
    [{"role": "assistant", "content": [{"type": "refusal", "refusal": ""}]}],
    [REASONING],
    [REASONING | {"content": [text("reasoning_text", " ")], "encrypted_content": "opaque"}],
]


@pytest.mark.parametrize("value", EMPTY, ids=repr)
def test_an_empty_dialogue_is_refused(value: object, validate: Validate) -> None:
    items = validate(input=value).items
    for instructions in (None, "", " "):
        with pytest.raises(InvalidRequestError) as caught:
            check_not_empty(items, instructions)
        assert caught.value.param == "input"
    check_not_empty(items, "Say something.")
    check_not_empty([InputItem(type="message", role="user", content="hi"), *items], None)


@pytest.mark.parametrize(
    "value",
    [
        "x",
        [{"role": "system", "content": "x"}],
        [{"role": "user", "content": [text("input_text", " "), text("input_text", "x")]}],
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]}],
        [CALL],
        [REASONING | {"content": [text("reasoning_text")]}],
        [REASONING | {"summary": [text("summary_text")]}],
        [COMPACTION],
    ],
    ids=repr,
)
def test_a_dialogue_that_says_something(value: object, validate: Validate) -> None:
    check_not_empty(validate(input=value).items, None)


@pytest.mark.parametrize("instructions", [None, "Be brief."])
def test_input_may_be_absent_only_with_a_history(
    instructions: str | None, validate: Validate, refusal: Refusal
) -> None:
    error = refusal(input=None, instructions=instructions)
    assert error.param == "input"
    assert "missing" in error.message
    for chain in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
        assert validate(input=None, instructions=instructions, **chain).items == ()


def test_the_path_of_items_that_come_in_another_field() -> None:
    wrong = InputItem(role="user", content=[InputPart(type="input_text")])
    for path in ("items", "a[0].b"):
        with pytest.raises(InvalidRequestError) as caught:
            read_input([InputItem(role="user", content="x"), wrong], path)
        assert caught.value.param == f"{path}[1].content[0].text"
        assert caught.value.param in caught.value.message
