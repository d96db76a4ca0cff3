"""Whatever the decoder lets through is accepted or refused with one of our own errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from mlxcel_trio.core.dialogue import continue_dialogue
from mlxcel_trio.core.history import to_messages
from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.core.skeleton import open_response
from mlxcel_trio.core.stored_items import store_input
from mlxcel_trio.core.transcript import EMPTY
from mlxcel_trio.core.validation import ValidationContext, check_not_empty, not_yet, validate_create
from mlxcel_trio.errors import MlxcelError
from mlxcel_trio.protocol.codec import decode, encode
from mlxcel_trio.protocol.items import InputItem, InputPart
from mlxcel_trio.protocol.requests import CreateResponse
from mlxcel_trio.protocol.tools import (
    FunctionBody,
    JsonSchemaBody,
    TextFormatParam,
    TextParam,
    ToolChoiceParam,
    ToolName,
    ToolParam,
)

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

STRINGS = st.sampled_from(["", "a", "auto", "none", "disabled"]) | st.text(max_size=4)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRINGS
)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def some_of(
    draw: DrawFn, /, struct: type[msgspec.Struct], **plausible: SearchStrategy[Any]
) -> msgspec.Struct:
    """A struct with a few fields set: the ``plausible`` ones mostly, others to anything of their type."""
    hints = get_type_hints(struct)
    others = draw(st.sets(st.sampled_from(sorted(hints)), max_size=1))
    left_out = draw(st.sets(st.sampled_from(sorted(plausible)), max_size=1))
    names = sorted((plausible.keys() | others) - left_out)
    strategies = {name: st.from_type(hint) for name, hint in hints.items()} | plausible
    return struct(**{name: draw(strategies[name]) for name in names})


def schemas() -> SearchStrategy[msgspec.Raw]:
    keywords = st.sampled_from(["type", "properties", "$schema", "$ref", "items", "required", "x"])
    values = st.sampled_from(["string", {}, [], ["a"], {"a": {}}]) | ANY
    return st.dictionaries(keywords, values, max_size=2).map(msgspec.json.encode).map(msgspec.Raw)


st.register_type_strategy(msgspec.Raw, ANY.map(msgspec.json.encode).map(msgspec.Raw))

NAMES = st.sampled_from(["a", "b", "c-d", "/"])
PART_TYPES = ["input_text", "output_text", "refusal", "text", "reasoning_text", "summary_text", "input_image"]
PARTS = st.lists(
    some_of(InputPart, type=st.sampled_from(PART_TYPES), text=STRINGS, refusal=STRINGS), max_size=2
)
MESSAGES = some_of(
    InputItem,
    role=st.sampled_from(["user", "assistant", "system", "developer"]),
    content=st.text(max_size=4) | PARTS,
)
OTHER_ITEMS = some_of(
    InputItem,
    type=st.sampled_from(
        ["function_call", "function_call_output", "reasoning", "compaction", "item_reference", "unheard_of"]
    ),
    id=st.sampled_from(["a", "b"]),
    call_id=NAMES,
    name=NAMES,
    arguments=STRINGS,
    output=st.text(max_size=4) | PARTS,
    content=PARTS,
    encrypted_content=st.just("e30"),
)
TOOLS = some_of(ToolParam, type=st.just("function"), name=NAMES, parameters=schemas()) | some_of(
    ToolParam, type=st.just("function"), function=some_of(FunctionBody, name=NAMES, parameters=schemas())
)
CHOICES = some_of(
    ToolChoiceParam,
    type=st.sampled_from(["function", "allowed_tools"]),
    name=NAMES,
    mode=st.sampled_from(["auto", "required"]),
    tools=st.lists(some_of(ToolName, type=st.just("function"), name=NAMES), max_size=2),
)
FORMATS = some_of(
    TextFormatParam,
    type=st.sampled_from(["text", "json_object", "json_schema"]),
    name=NAMES,
    schema=schemas(),
) | some_of(
    TextFormatParam,
    type=st.just("json_schema"),
    json_schema=some_of(JsonSchemaBody, name=NAMES, schema=schemas()),
)
ALWAYS = {"model": st.just("local"), "input": st.text(max_size=4)}
FOCUSES: list[dict[str, SearchStrategy[Any]]] = [
    {"input": st.lists(MESSAGES | OTHER_ITEMS, max_size=4)},
    {"tools": st.lists(TOOLS, max_size=2), "tool_choice": st.none() | CHOICES | STRINGS},
    {"text": some_of(TextParam, format=FORMATS)},
    {"chat_template_kwargs": schemas(), "metadata": st.dictionaries(STRINGS, STRINGS)},
    {"temperature": st.floats(-1, 3), "stop": st.lists(STRINGS), "logit_bias": st.just({"1": 1.0})},
]
REQUESTS = st.one_of([some_of(CreateResponse, **(ALWAYS | focus)) for focus in FOCUSES])

CONTEXT = ValidationContext(
    {"local": "tiny"},
    SamplingDefaults(),
    store_enabled=True,
    conversations_enabled=True,
    background_enabled=True,
)
STORED = {"a": store_input(InputItem(type="message", role="user", content=" "), "a")}
HISTORY = EMPTY.append(STORED.values())
LENIENT = msgspec.structs.replace(CONTEXT, ignore_unsupported_tools=True)


def attempt(body: bytes, context: ValidationContext = CONTEXT) -> str:
    """Everything pure that happens to a body on its way to the engine and back."""
    try:
        request = decode(body, CreateResponse)
    except MlxcelError:
        return "not decodable"
    try:
        plan = validate_create(request, context)
        items = [item for item in plan.items if item.type != "compaction"]
        dialogue = continue_dialogue(HISTORY, items, find_item=STORED.get, new_id="{}_new".format)
        check_not_empty(dialogue.items, plan.instructions)
    except MlxcelError as error:
        return "refused" if str(error) else "refused in silence"
    to_messages(dialogue.items, plan.instructions)
    echo = json.loads(encode(open_response(plan, response_id="resp_1", created_at=0)))
    assert echo["model"] == "tiny"
    return "accepted"


@given(REQUESTS, st.sampled_from([CONTEXT, LENIENT]))
@settings(max_examples=200, deadline=None)
def test_plausible_requests(request_: CreateResponse, context: ValidationContext) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(not_yet, "_NOT_YET", ())
        event(attempt(encode(request_), context))


@given(st.dictionaries(st.sampled_from(CreateResponse.__struct_fields__), ANY, max_size=6))
def test_any_value_in_any_field(body: dict[str, Any]) -> None:
    event(attempt(json.dumps({"model": "local", "input": "hi"} | body).encode()))


@given(ANY)
def test_any_json(value: object) -> None:
    assert attempt(json.dumps(value).encode()) != "accepted"


@given(
    st.sampled_from(
        [
            b'"chat_template_kwargs":{"a":"%b"}',
            b'"tools":[{"type":"function","name":"a","parameters":{"a":"%b"}}]',
        ]
    ),
    st.binary(max_size=20),
)
def test_any_bytes_inside_free_form_values(field: bytes, noise: bytes) -> None:
    attempt(b'{"model":"local","input":"hi",' + field % noise + b"}")


def test_an_attempt_has_three_ends() -> None:
    assert attempt(b'{"model":"local","input":"hi"}') == "accepted"
    assert attempt(b'{"model":"local","input":""}') == "refused"
    assert attempt(b'{"model":1}') == "not decodable"
