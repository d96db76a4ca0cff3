"""Model names, combinations that are refused, stored state, and what is not built yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from mlxcel_trio.core.plan import CreatePlan
from mlxcel_trio.core.validation import ValidationContext, not_yet, validate_create
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.requests import ConversationRef, CreateResponse

Validate = Callable[..., CreatePlan]
Refusal = Callable[..., InvalidRequestError]


@pytest.mark.parametrize("name", ["local", "tiny", "org/tiny"])
def test_every_name_becomes_the_canonical_one(name: str, validate: Validate) -> None:
    assert validate(model=name).model == "tiny"


@pytest.mark.parametrize("name", [None, "", "Local", "gpt-5", "x" * 10_000])
def test_unknown_models(name: str | None, refusal: Refusal) -> None:
    error = refusal(model=name)
    assert (error.param, error.code) == ("model", "model_not_found")
    assert "'local', 'tiny', 'org/tiny'" in error.message
    assert len(error.message) < 200


@pytest.mark.parametrize("name", [1, True, ["local"], {"a": 1}])
def test_model_of_a_wrong_type(name: object, refusal: Refusal) -> None:
    error = refusal(model=name)
    assert (error.param, error.code) == ("model", None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "stream": True}, "background"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": "resp_1", "conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"prompt": "x"}, "prompt"),
        ({"prompt": False}, "prompt"),
        ({"prompt": {}}, "prompt"),
    ],
)
def test_refused_combinations(fields: dict[str, Any], param: str, refusal: Refusal) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"background": True, "stream": False},
        {"background": True, "stream": None},
        {"background": False, "stream": True},
        {"previous_response_id": "resp_1", "conversation": None},
        {"previous_response_id": None, "conversation": "conv_1"},
        {"previous_response_id": "resp_1", "store": False},
        {"prompt": None},
    ],
)
def test_accepted_combinations(fields: dict[str, Any], validate: Validate) -> None:
    plan = validate(**fields)
    assert plan.background is bool(fields.get("background"))
    assert plan.stream is bool(fields.get("stream"))
    assert plan.previous_response_id == fields.get("previous_response_id")


@pytest.mark.parametrize("value", [1, True, ["resp_1"], {"id": "resp_1"}])
def test_previous_response_id_of_a_wrong_type(value: object, refusal: Refusal) -> None:
    assert refusal(previous_response_id=value).param == "previous_response_id"


@pytest.mark.parametrize(
    ("field", "needed", "other"),
    [
        ("previous_response_id", "store_enabled", "conversations_enabled"),
        ("conversation", "conversations_enabled", "store_enabled"),
    ],
)
def test_state_needs_its_store(field: str, needed: str, other: str, context: ValidationContext) -> None:
    def validate(*disabled: str) -> CreatePlan:
        return validate_create(request, replace(context, **dict.fromkeys(disabled, False)))

    request = replace(CreateResponse(model="local", input="hi"), **{field: "a_1"})
    assert validate(other, "background_enabled").items == validate().items
    # Switched off comes first: what may not be used at all need not be spelled right.
    for value in ("a_1", "/", ConversationRef("a_1")):
        request = replace(request, **{field: value})
        with pytest.raises(InvalidRequestError) as caught:
            validate(needed)
        assert (caught.value.param, caught.value.code) == (field, "store_disabled")
        assert "whole history in 'input'" in caught.value.message


@pytest.mark.parametrize(
    ("disabled", "code"),
    [
        ({"background_enabled": False}, None),
        ({"store_enabled": False}, "store_disabled"),
        ({"store_enabled": False, "background_enabled": False}, "store_disabled"),
    ],
    ids=str,
)
def test_background_needs_the_store_and_places_for_jobs(
    disabled: dict[str, bool], code: str | None, context: ValidationContext
) -> None:
    for store in (True, False, None):
        request = CreateResponse(model="local", input="hi", background=True, store=store)
        assert validate_create(request, replace(context, conversations_enabled=False)).background is True
        with pytest.raises(InvalidRequestError) as caught:
            validate_create(request, replace(context, **disabled))
        assert (caught.value.param, caught.value.code) == ("background", code)
        assert "--responses-background-max-jobs" in caught.value.message
        foreground = replace(request, background=False)
        assert validate_create(foreground, replace(context, **disabled)).background is False


def test_without_stores_a_request_by_itself_is_fine(context: ValidationContext) -> None:
    plan = validate_create(
        CreateResponse(model="local", input="hi", store=True),
        replace(context, store_enabled=False, conversations_enabled=False, background_enabled=False),
    )
    assert plan.store is False


@pytest.mark.parametrize("conversation_id", ["a", "conv_1", "A-z_9", "x" * 64])
def test_both_forms_of_a_conversation(conversation_id: str, validate: Validate) -> None:
    for form in (conversation_id, {"id": conversation_id}):
        assert validate(conversation=form).conversation == ConversationRef(conversation_id)


@pytest.mark.parametrize("conversation_id", ["", "x" * 65, "a b", "a/b", "é", "a\n"])
def test_conversation_ids_refused(conversation_id: str, refusal: Refusal) -> None:
    assert refusal(conversation=conversation_id).param == "conversation"
    assert refusal(conversation={"id": conversation_id}).param == "conversation.id"


@pytest.mark.parametrize("value", [1, True, [], {}, {"id": None}, {"id": 1}])
def test_conversation_of_a_wrong_type(value: object, refusal: Refusal) -> None:
    assert (refusal(conversation=value).param or "").startswith("conversation")


@pytest.mark.parametrize("threshold", [1, 100_000_000])
def test_context_management(threshold: int, validate: Validate) -> None:
    validate(context_management=[{"type": "compaction", "compact_threshold": threshold}])


@pytest.mark.parametrize("empty", [None, []])
def test_no_context_management(empty: object, validate_as_built: Validate) -> None:
    validate_as_built(context_management=empty)


THRESHOLD = "context_management[0].compact_threshold"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([{"type": "compaction", "compact_threshold": 0}], THRESHOLD),
        ([{"type": "compaction", "compact_threshold": -1}], THRESHOLD),
        ([{"type": "compaction", "compact_threshold": 100_000_001}], THRESHOLD),
        ([{"type": "compaction", "compact_threshold": None}], THRESHOLD),
        ([{"type": "compaction"}], THRESHOLD),
        ([{"type": "compaction", "compact_threshold": True}], THRESHOLD),
        ([{"type": "compaction", "compact_threshold": "1"}], THRESHOLD),
        ([{"type": "compaction", "compact_threshold": 1.5}], THRESHOLD),
        ([{"compact_threshold": 1}], "context_management[0].type"),
        ([{"type": "truncation", "compact_threshold": 1}], "context_management[0].type"),
        ([{}], "context_management[0].type"),
        ([{"type": "compaction", "compact_threshold": 1}] * 2, "context_management"),
        ({}, "context_management"),
        ("compaction", "context_management"),
        ([1], "context_management[0]"),
    ],
)
def test_context_management_refused(value: object, param: str, refusal: Refusal) -> None:
    assert refusal(context_management=value).param == param


TOOL = {"type": "function", "name": "a", "parameters": {}}
NOT_BUILT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # the field, a request that asks for it, and the same with a mistake in it
    ("tools", {"tools": [TOOL]}, {"tools": [TOOL | {"name": "/"}]}),
    ("text.format", {"text": {"format": {"type": "json_object"}}}, {"text": {"format": {"type": "json"}}}),
    (
        "text.format",
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "objekt"}}}},
    ),
    (
        "context_management",
        {"context_management": [{"type": "compaction", "compact_threshold": 1}]},
        {"context_management": [{"type": "compaction", "compact_threshold": 0}]},
    ),
    (
        "input[1].type",
        {"input": [{"role": "user", "content": "x"}, {"type": "compaction", "encrypted_content": "e30"}]},
        {"input": [{"role": "user", "content": "x"}, {"type": "compaction"}]},
    ),
]


@pytest.mark.parametrize(("param", "asks", "mistaken"), NOT_BUILT, ids=[row[0] for row in NOT_BUILT])
def test_what_is_not_built_is_refused_by_name_but_last(
    param: str, asks: dict[str, Any], mistaken: dict[str, Any], validate_as_built: Validate
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        validate_as_built(**asks)
    assert refused.value.param == param
    assert refused.value.message.startswith(f"'{param}' is not supported by this version yet")
    with pytest.raises(InvalidRequestError) as invalid:
        validate_as_built(**mistaken)
    assert "not supported by this version" not in invalid.value.message


def test_every_row_of_the_table_is_tried() -> None:
    assert len({row[0] for row in NOT_BUILT}) == len(not_yet._NOT_YET)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        {"background": False},
        {"background": True},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}, "store": False},
        {"input": [{"type": "item_reference", "id": "a"}]},
        {"top_logprobs": 0, "include": ["reasoning.encrypted_content"]},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}},
        {"repetition_penalty": 1.0},
        {
            "input": [
                {"role": "user", "content": "tide?"},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c", "name": "get_tide", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "3 m"},
            ]
        },
    ],
)
def test_values_that_ask_for_what_is_built(fields: dict[str, Any], validate_as_built: Validate) -> None:
    validate_as_built(**fields)
