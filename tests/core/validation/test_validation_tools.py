"""Tools and tool choice: accepted forms, what is echoed, and what is refused with which path."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mlxcel_trio.core.plan import CreatePlan
from mlxcel_trio.core.validation import ValidationContext, unsupported_tools, validate_create
from mlxcel_trio.core.validation.tools import MAX_PARAMETERS_BYTES, MAX_TOOLS
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import decode
from mlxcel_trio.protocol.requests import CreateResponse
from mlxcel_trio.protocol.tools import AllowedToolsChoice, NamedToolChoice, ToolParam

Validate = Callable[..., CreatePlan]
Refusal = Callable[..., InvalidRequestError]

PARAMETERS = {"type": "object", "properties": {"harbour": {"type": "string"}}, "required": ["harbour"]}


def tool(name: object = "get_tide", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": name} | fields


def echoed(plan: CreatePlan) -> object:
    return json.loads(msgspec.json.encode(plan.tools))


@pytest.mark.parametrize("empty", [None, []])
def test_no_tools(empty: object, validate: Validate) -> None:
    plan = validate(tools=empty)
    assert plan.tools == ()
    assert plan.tool_choice == "auto"


def test_the_echo_has_every_key(validate: Validate) -> None:
    tools = [
        tool("a", description="d", parameters=PARAMETERS, strict=True, defer_loading=True),
        tool("b", strict=False, description=None, parameters=None),
        tool("c", strict=None, parameters={}),
    ]
    keys = ("type", "name", "description", "parameters", "strict")
    assert echoed(validate(tools=tools)) == [{key: tool.get(key) for key in keys} for tool in tools]


@pytest.mark.parametrize(
    "nested",
    [
        {
            "type": "function",
            "function": {"name": "a", "description": "d", "parameters": PARAMETERS, "strict": True},
        },
        {
            "type": "function",
            "name": None,
            "function": {"name": "a", "description": "d", "parameters": PARAMETERS, "strict": True},
        },
    ],
)
def test_the_nested_form_is_echoed_flat(nested: dict[str, Any], validate: Validate) -> None:
    flat = tool("a", description="d", parameters=PARAMETERS, strict=True)
    assert echoed(validate(tools=[nested])) == [flat]


@pytest.mark.usefixtures("validate")  # tools count as built
def test_parameters_are_echoed_as_sent(context: ValidationContext) -> None:
    sent = b'{ "type":"object",\n "properties": {"b": {"minimum": 1.50}, "a": {}} }'
    body = (
        b'{"model":"local","input":"hi","tools":[{"type":"function","name":"a","parameters":' + sent + b"}]}"
    )
    plan = validate_create(decode(body, CreateResponse), context)
    assert bytes(plan.tools[0].parameters) == sent


@pytest.mark.usefixtures("validate")  # tools count as built
def test_nothing_in_the_plan_pins_the_body(context: ValidationContext) -> None:
    body = bytearray(
        json.dumps(
            {
                "model": "local",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
                "tools": [tool(parameters=PARAMETERS)],
                "text": {"format": {"type": "json_schema", "name": "out", "schema": PARAMETERS}},
                "chat_template_kwargs": {"a": {"b": "c"}},
                "metadata": {"k": "v"},
            }
        ).encode()
    )
    request = decode(memoryview(body), CreateResponse)
    plan = validate_create(request, context)
    with pytest.raises(BufferError):
        body.clear()  # the request is a view of it
    del request
    body.clear()
    assert json.loads(bytes(plan.tools[0].parameters)) == PARAMETERS


@pytest.mark.parametrize("name", ["a", "A9_.-", "x" * 64])
def test_names(name: str, validate: Validate) -> None:
    assert validate(tools=[tool(name)]).tools[0].name == name


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        ({"name": "a"}, "type"),
        ({"type": None, "name": "a"}, "type"),
        ({"type": 1, "name": "a"}, "type"),
        (tool(None), "name"),
        (tool(""), "name"),
        (tool("x" * 65), "name"),
        (tool("fleet.list/boats"), "name"),
        (tool("a b"), "name"),
        (tool("é"), "name"),
        (tool("a\n"), "name"),
        (tool(1), "name"),
        (tool("first"), "name"),
        ({"type": "function", "function": {}}, "function.name"),
        ({"type": "function", "function": {"name": "a/b"}}, "function.name"),
        ({"type": "function", "function": {"name": "first"}}, "function.name"),
        ({"type": "function", "function": "a"}, "function"),
        (
            {"type": "function", "function": {"name": "a", "parameters": {"type": "objekt"}}},
            "function.parameters",
        ),
        (tool(parameters={"type": "objekt"}), "parameters"),
        (tool(parameters={"properties": []}), "parameters"),
        (tool(parameters={"required": "harbour"}), "parameters"),
        (tool(parameters=True), "parameters"),
        (tool(parameters="{}"), "parameters"),
        (tool(parameters=[]), "parameters"),
        (tool(description=1), "description"),
        (tool(strict="yes"), "strict"),
    ],
    ids=repr,
)
def test_refused_with_the_exact_path(bad: dict[str, Any], param: str, refusal: Refusal) -> None:
    assert refusal(tools=[tool("first"), bad]).param == f"tools[1].{param}"


@pytest.mark.parametrize("value", ["x", 1, {"type": "function"}, [1], [None]])
def test_tools_of_a_wrong_type(value: object, refusal: Refusal) -> None:
    assert (refusal(tools=value).param or "").startswith("tools")


HOSTED = [
    "web_search",
    "file_search",
    "computer_use_preview",
    "code_interpreter",
    "image_generation",
    "mcp",
    "custom",
    "apply_patch",
    "function_shell",
    "namespace",
    "",
]


@pytest.mark.parametrize("kind", HOSTED)
def test_only_functions(kind: str, refusal: Refusal) -> None:
    error = refusal(tools=[tool("a"), {"type": kind, "name": "b"}, {"type": "other"}])
    assert error.param == "tools[1].type"
    assert repr(kind) in error.message
    assert "tools[1].type" in error.message


@pytest.mark.usefixtures("validate")  # tools count as built
def test_other_tools_can_be_dropped_instead(context: ValidationContext) -> None:
    lenient = replace(context, ignore_unsupported_tools=True)
    hosted = [ToolParam(type=kind, name="get_tide") for kind in HOSTED]
    tools = [*hosted, ToolParam(type="function", name="get_tide"), *hosted]
    request = CreateResponse(model="local", input="hi", tools=tools)
    assert [tool.name for tool in validate_create(request, lenient).tools] == ["get_tide"]
    assert list(unsupported_tools(tools).values()) == HOSTED * 2
    assert len(HOSTED) not in unsupported_tools(tools)
    # What is left is judged as ever, and named by its place in the request.
    for param, bad in {"tools[1].type": ToolParam(), "tools[1].name": ToolParam(type="function")}.items():
        with pytest.raises(InvalidRequestError) as caught:
            validate_create(CreateResponse(model="local", input="hi", tools=[hosted[0], bad]), lenient)
        assert caught.value.param == param


def test_number_of_tools(validate: Validate, refusal: Refusal) -> None:
    tools = [tool(f"t{index}") for index in range(MAX_TOOLS + 1)]
    assert len(validate(tools=tools[:-1]).tools) == MAX_TOOLS == 128
    assert refusal(tools=tools).param == "tools"


def test_size_of_all_parameters(validate: Validate, refusal: Refusal) -> None:
    def tools(total: int) -> list[dict[str, Any]]:
        parts = 5
        overhead = len(json.dumps({"title": ""}))
        sizes = [total // parts - overhead] * parts
        sizes[0] += total % parts
        return [tool(f"t{n}", parameters={"title": "x" * size}) for n, size in enumerate(sizes)]

    assert len(validate(tools=tools(MAX_PARAMETERS_BYTES)).tools) == 5
    assert refusal(tools=tools(MAX_PARAMETERS_BYTES + 1)).param == "tools"


TWO = [tool("a"), tool("b")]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "b"}, NamedToolChoice("b")),
        ({"type": "function", "function": {"name": "b"}}, NamedToolChoice("b")),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]},
            AllowedToolsChoice("auto", (NamedToolChoice("b"),)),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "b"}, {"type": "function", "name": "a"}],
            },
            AllowedToolsChoice("required", (NamedToolChoice("b"), NamedToolChoice("a"))),
        ),
    ],
    ids=repr,
)
def test_tool_choice(choice: object, expected: object, validate: Validate) -> None:
    assert validate(tools=TWO, tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_choices_that_need_no_tools(choice: str | None, validate_as_built: Validate) -> None:
    assert validate_as_built(tool_choice=choice).tool_choice == (choice or "auto")


def allowed(**fields: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a"}]} | fields


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("", "tool_choice"),
        ("any", "tool_choice"),
        (1, "tool_choice"),
        ([], "tool_choice"),
        ({}, "tool_choice.type"),
        ({"name": "a"}, "tool_choice.type"),
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "custom", "name": "a"}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "name": "c"}, "tool_choice.name"),
        ({"type": "function", "name": ""}, "tool_choice.name"),
        ({"type": "function", "function": {}}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": "c"}}, "tool_choice.function.name"),
        (allowed(mode=None), "tool_choice.mode"),
        (allowed(mode="none"), "tool_choice.mode"),
        (allowed(tools=None), "tool_choice.tools"),
        (allowed(tools=[]), "tool_choice.tools"),
        (allowed(tools=[{"name": "a"}]), "tool_choice.tools[0].type"),
        (allowed(tools=[{"type": "mcp", "name": "a"}]), "tool_choice.tools[0].type"),
        (allowed(tools=[{"type": "function"}]), "tool_choice.tools[0].name"),
        (
            allowed(tools=[{"type": "function", "name": "a"}, {"type": "function", "name": "c"}]),
            "tool_choice.tools[1].name",
        ),
    ],
    ids=repr,
)
def test_tool_choice_refused(choice: object, param: str, refusal: Refusal) -> None:
    assert refusal(tools=TWO, tool_choice=choice).param == param


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("required", "tool_choice"),
        ({"type": "function", "name": "a"}, "tool_choice.name"),
        (allowed(), "tool_choice.tools[0].name"),
    ],
)
def test_a_forced_call_needs_tools(choice: object, param: str, refusal: Refusal) -> None:
    assert refusal(tool_choice=choice).param == param
    assert refusal(tools=[], tool_choice=choice).param == param
