"""Plain fields: each with its edges, what lies just outside, wrong types, null and absence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from mlxcel_trio.core.plan import CreatePlan
from mlxcel_trio.core.sampling import NO_ADJUSTMENTS, LogitAdjustments, SamplingParameters
from mlxcel_trio.core.validation import ValidationContext, validate_create
from mlxcel_trio.core.validation.fields import check_fields
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import decode
from mlxcel_trio.protocol.requests import CreateResponse
from mlxcel_trio.protocol.responses import ReasoningConfig

Validate = Callable[..., CreatePlan]
Refusal = Callable[..., InvalidRequestError]

INT64 = 2**63


class Field(NamedTuple):
    """``read`` finds the field in a plan; ``param`` is what errors about outside values name."""

    name: str
    default: object
    accepted: list[Any]
    outside: list[Any]
    wrong_types: list[Any]
    read: Callable[[CreatePlan], object] | None = None


def number(
    name: str,
    default: object,
    accepted: list[Any],
    outside: list[Any],
    read: Callable[[CreatePlan], object] | None,
) -> Field:
    return Field(name, default, accepted, outside, ["1", True, [1], {"a": 1}], read)


def integer(
    name: str,
    default: object,
    accepted: list[Any],
    outside: list[Any],
    read: Callable[[CreatePlan], object] | None,
) -> Field:
    return Field(name, default, accepted, outside, ["1", True, 1.5, [1], {"a": 1}], read)


def string(name: str, read: Callable[[CreatePlan], object]) -> Field:
    return Field(name, None, ["", "x", "x" * 10_000, "é\u0000\n"], [], [1, True, ["x"], {"a": "x"}], read)


def flag(name: str, default: bool, read: Callable[[CreatePlan], object]) -> Field:
    return Field(name, default, [True, False], [], ["true", 1, 0, [True]], read)


def choice(
    name: str, accepted: list[str], outside: list[str], read: Callable[[CreatePlan], object] | None
) -> Field:
    return Field(name, None, accepted, ["", *outside], [1, True, ["auto"]], read)


FIELDS = [
    integer("max_output_tokens", None, [1, 10**12], [0, -1], lambda plan: plan.max_output_tokens),
    integer("max_tool_calls", None, [1, 10**12], [0, -1], lambda plan: plan.max_tool_calls),
    integer("top_logprobs", 0, [0, 20], [-1, 21], lambda plan: plan.top_logprobs),
    integer("seed", None, [-INT64, 0, INT64 - 1], [-INT64 - 1, INT64, 10**40], lambda p: p.sampling.seed),
    integer("top_k", 40, [0, 1, 2**31 - 1], [-1, 2**31, 10**40], lambda plan: plan.sampling.top_k),
    number("temperature", 0.7, [0, 0.5, 2], [-0.001, 2.001, 1e300], lambda plan: plan.sampling.temperature),
    number("top_p", 0.9, [1e-9, 1], [0, -0.1, 1.001], lambda plan: plan.sampling.top_p),
    number("min_p", 0.05, [0, 1], [-0.001, 1.001], lambda plan: plan.sampling.min_p),
    number("presence_penalty", 0.0, [-2, 0, 2], [-2.001, 2.001], lambda plan: plan.presence_penalty),
    number("frequency_penalty", 0.0, [-2, 0, 2], [-2.001, 2.001], lambda plan: plan.frequency_penalty),
    number("repetition_penalty", None, [1e-9, 1, 2], [0, -1, 2.001], None),
    string("instructions", lambda plan: plan.instructions),
    string("user", lambda plan: plan.user),
    string("safety_identifier", lambda plan: plan.safety_identifier),
    string("prompt_cache_key", lambda plan: plan.prompt_cache_key),
    Field("service_tier", None, ["auto", "default", "flex", "anything"], [], [1, ["auto"]]),
    flag("stream", False, lambda plan: plan.stream),
    flag("background", False, lambda plan: plan.background),
    flag("store", True, lambda plan: plan.store),
    flag("parallel_tool_calls", True, lambda plan: plan.parallel_tool_calls),
    choice("truncation", ["disabled"], ["auto", "Disabled"], None),
    Field("include", None, [[], ["reasoning.encrypted_content", "no.such.thing"]], [], ["x", [1], {"a": 1}]),
    Field(
        "metadata",
        {},
        [{}, {"k" * 64: "v" * 512}, {str(n): "" for n in range(16)}],
        [{"k" * 65: "v"}, {"k": "v" * 513}, {str(n): "" for n in range(17)}],
        ["x", [], {"k": 1}, {"k": None}],
        lambda plan: plan.metadata,
    ),
    Field(
        "logit_bias",
        None,
        [{}, {"0": -100, "50256": 100.0}],
        [{"a": 1}, {"-1": 1}, {"": 1}, {"²": 1}, {"1": 100.1}, {"1": -100.1}],
        ["x", [], {"1": "x"}, {"1": True}],
    ),
    Field(
        "chat_template_kwargs",
        {},
        [{}, {"enable_thinking": False, "a": [1, {"b": None}]}],
        ["x", 1, []],
        [],
        lambda plan: plan.template_kwargs,
    ),
]


def cases(values: Callable[[Field], list[Any]]) -> list[Any]:
    return [
        pytest.param(field, value, id=f"{field.name}-{str(value)[:24]!a}")
        for field in FIELDS
        for value in values(field)
    ]


@pytest.mark.parametrize(("field", "value"), cases(lambda field: field.accepted))
def test_edges_are_accepted(field: Field, value: object, validate: Validate) -> None:
    plan = validate(**{field.name: value})
    if field.read is not None:
        assert field.read(plan) == value


@pytest.mark.parametrize(("field", "value"), cases(lambda field: field.outside + field.wrong_types))
def test_anything_else_is_refused_by_name(field: Field, value: object, refusal: Refusal) -> None:
    error = refusal(**{field.name: value})
    assert error.param is not None
    assert error.param.partition("[")[0] == field.name
    assert f"'{error.param}'" in error.message
    assert error.code is None


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_null_equals_absent(field: Field, validate: Validate) -> None:
    absent = validate()
    assert validate(**{field.name: None}) == absent
    if field.read is not None:
        assert field.read(absent) == field.default


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite_for_callers_who_build_the_request_themselves(name: str, value: float) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_fields(replace(CreateResponse(), **{name: value}))
    assert caught.value.param == name


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "9" * 400, "9" * 5000])
def test_numbers_are_finite_on_the_wire(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        decode(f'{{"temperature": {text}}}'.encode(), CreateResponse)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", 3, "Invalid value for 'temperature': 3.0 is out of range. Use 0 to 2."),
        ("top_p", 0, "Invalid value for 'top_p': 0.0 is out of range. Use more than 0 and at most 1."),
        ("max_output_tokens", 0, "Invalid value for 'max_output_tokens': 0 is out of range. Use at least 1."),
    ],
)
def test_errors_say_what_would_be_right(name: str, value: int, message: str, refusal: Refusal) -> None:
    assert refusal(**{name: value}).message == message


def test_a_huge_number_does_not_blow_up_its_error(refusal: Refusal) -> None:
    assert len(refusal(seed=10**4000).message) < 200
    assert len(refusal(truncation="x" * 100_000).message) < 300


def test_sampling_comes_from_the_request_first(validate: Validate) -> None:
    assert validate(temperature=0, top_p=1.0, top_k=0, min_p=0.0, seed=7).sampling == SamplingParameters(
        temperature=0, top_p=1.0, top_k=0, min_p=0.0, seed=7
    )
    assert validate(seed=7).sampling == SamplingParameters(
        temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, seed=7
    )


def test_store_is_false_when_the_store_is_disabled(context: ValidationContext) -> None:
    disabled = replace(context, store_enabled=False)
    for store in (True, False, None):
        request = CreateResponse(model="local", input="hi", store=store)
        assert validate_create(request, disabled).store is False
        assert validate_create(request, context).store is (store is not False)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (None, ()),
        ([], ()),
        ("END", ("END",)),
        (" ", (" ",)),
        (["a", "b", "c", "d"], ("a", "b", "c", "d")),
    ],
)
def test_stop(stop: object, expected: tuple[str, ...], validate: Validate) -> None:
    assert validate(stop=stop).stop == expected


@pytest.mark.parametrize(
    ("stop", "param"),
    [
        ("", "stop"),
        (["a", ""], "stop[1]"),
        (["a"] * 5, "stop"),
        (1, "stop"),
        (True, "stop"),
        ({"a": 1}, "stop"),
        (["a", 1], "stop[1]"),
        (["a", None], "stop[1]"),
    ],
)
def test_stop_refused(stop: object, param: str, refusal: Refusal) -> None:
    assert refusal(stop=stop).param == param


EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SUMMARIES = ["auto", "concise", "detailed"]


@pytest.mark.parametrize("effort", [None, *EFFORTS])
@pytest.mark.parametrize("summary", [None, *SUMMARIES])
def test_reasoning_is_echoed(effort: str | None, summary: str | None, validate: Validate) -> None:
    plan = validate(reasoning={"effort": effort, "summary": summary, "context": "unknown keys are ignored"})
    assert plan.reasoning == ReasoningConfig(effort, summary)


@pytest.mark.parametrize(
    ("reasoning", "param", "accepted"),
    [
        ({"effort": "extreme"}, "reasoning.effort", EFFORTS),
        ({"effort": ""}, "reasoning.effort", EFFORTS),
        ({"summary": "none"}, "reasoning.summary", SUMMARIES),
        ({"effort": 1}, "reasoning.effort", []),
        ("high", "reasoning", []),
        ([], "reasoning", []),
    ],
)
def test_reasoning_refused(reasoning: object, param: str, accepted: list[str], refusal: Refusal) -> None:
    error = refusal(reasoning=reasoning)
    assert error.param == param
    assert all(f"'{value}'" in error.message for value in accepted)


def test_reasoning_null_and_empty(validate: Validate) -> None:
    assert validate(reasoning=None).reasoning is None
    assert validate().reasoning is None
    assert validate(reasoning={}).reasoning == ReasoningConfig(None, None)


@pytest.mark.parametrize("body", [b'{"a":"\xff"}', b"[" * 500 + b"]" * 500, b'{"a":1e999}', b'"x"', b"true"])
def test_template_variables_that_cannot_be_read(body: bytes, context: ValidationContext) -> None:
    request = decode(b'{"model":"local","input":"hi","chat_template_kwargs":' + body + b"}", CreateResponse)
    with pytest.raises(InvalidRequestError) as caught:
        validate_create(request, context)
    assert caught.value.param == "chat_template_kwargs"


def test_penalties_and_biases_reach_the_plan(validate: Validate) -> None:
    plan = validate(
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": -100, "03": 1.5},
    )
    assert plan.adjustments == LogitAdjustments(1.1, 0.5, -0.5, ((3, 1.5), (7, -100.0)))
    assert (plan.presence_penalty, plan.frequency_penalty) == (0.5, -0.5)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}},
        {"presence_penalty": None, "repetition_penalty": None, "logit_bias": None},
    ],
)
def test_neutral_penalties_adjust_nothing(fields: dict[str, Any], validate: Validate) -> None:
    assert validate(**fields).adjustments == NO_ADJUSTMENTS


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, False),
        ({"top_logprobs": 0, "include": ["reasoning.encrypted_content"]}, False),
        ({"top_logprobs": 1}, True),
        ({"include": ["message.output_text.logprobs"]}, True),
    ],
)
def test_what_turns_logprobs_on(fields: dict[str, Any], wanted: bool, validate: Validate) -> None:
    assert validate(**fields).logprobs is wanted
