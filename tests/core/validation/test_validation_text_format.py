"""``text``: formats in both forms, what is echoed, and the limits of a schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mlxcel_trio.core.plan import CreatePlan
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.tools import JsonObjectFormat, JsonSchemaFormat, PlainTextFormat, TextConfig

Validate = Callable[..., CreatePlan]
Refusal = Callable[..., InvalidRequestError]

SCHEMA = {"type": "object", "properties": {"boat": {"type": "string"}}, "required": ["boat"]}


def flat(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "out", "schema": SCHEMA} | fields}


def nested(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "json_schema": {"name": "out", "schema": SCHEMA} | fields}}


@pytest.mark.parametrize("text", [None, {}, {"format": None}, {"format": {"type": "text"}}])
def test_plain_text(text: object, validate_as_built: Validate) -> None:
    assert validate_as_built(text=text).text == TextConfig(format=PlainTextFormat())


@pytest.mark.parametrize("verbosity", ["low", "medium", "high"])
def test_verbosity(verbosity: str, validate_as_built: Validate) -> None:
    assert validate_as_built(text={"verbosity": verbosity}).text.verbosity == verbosity


def test_json_object(validate: Validate) -> None:
    assert validate(text={"format": {"type": "json_object"}}).text.format == JsonObjectFormat()


@pytest.mark.parametrize("form", [flat, nested])
@pytest.mark.parametrize(("sent", "strict"), [(True, True), (False, False), (None, False)])
@pytest.mark.parametrize("description", [None, "a boat"])
def test_json_schema(
    form: Callable[..., dict[str, Any]],
    sent: bool | None,
    strict: bool,
    description: str | None,
    validate: Validate,
) -> None:
    result = validate(text=form(strict=sent, description=description)).text.format
    assert isinstance(result, JsonSchemaFormat)
    assert (result.name, result.description, result.strict) == ("out", description, strict)
    assert json.loads(bytes(result.schema)) == SCHEMA


@pytest.mark.parametrize("form", [flat, nested])
@pytest.mark.parametrize("name", ["a", "A9_-", "x" * 64])
def test_names(form: Callable[..., dict[str, Any]], name: str, validate: Validate) -> None:
    result = validate(text=form(name=name)).text.format
    assert isinstance(result, JsonSchemaFormat)
    assert result.name == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "a.b"}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": 1}, "name"),
        ({"schema": None}, "schema"),
        ({"schema": True}, "schema"),
        ({"schema": "{}"}, "schema"),
        ({"schema": []}, "schema"),
        ({"schema": {"type": "objekt"}}, "schema"),
        ({"schema": {"$defs": {"a": {"minLength": -1}}}}, "schema"),
        ({"strict": "yes"}, "strict"),
        ({"description": 1}, "description"),
    ],
    ids=repr,
)
def test_json_schema_refused(fields: dict[str, Any], param: str, refusal: Refusal) -> None:
    assert refusal(text=flat(**fields)).param == f"text.format.{param}"
    assert refusal(text=nested(**fields)).param == f"text.format.json_schema.{param}"


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("json", "text"),
        ([], "text"),
        ({"format": "json"}, "text.format"),
        ({"format": {}}, "text.format.type"),
        ({"format": {"type": None}}, "text.format.type"),
        ({"format": {"type": ""}}, "text.format.type"),
        ({"format": {"type": "grammar"}}, "text.format.type"),
        ({"format": {"type": "json_schema"}}, "text.format.name"),
        ({"format": {"type": "json_schema", "json_schema": {}}}, "text.format.json_schema.name"),
        ({"verbosity": "loud"}, "text.verbosity"),
        ({"verbosity": ""}, "text.verbosity"),
        ({"verbosity": 1}, "text.verbosity"),
    ],
    ids=repr,
)
def test_text_refused(text: object, param: str, refusal: Refusal) -> None:
    assert refusal(text=text).param == param


def references(count: int) -> dict[str, Any]:
    definitions = {
        "p": {"type": "string"},
        "$ref": {"type": "string"},
    }  # the second is a name, not a reference
    return {"$defs": definitions, "properties": {f"p{n}": {"$ref": "#/$defs/p"} for n in range(count)}}


def test_number_of_references(validate: Validate, refusal: Refusal) -> None:
    validate(text=flat(schema=references(64)))
    assert refusal(text=flat(schema=references(65))).param == "text.format.schema"
    # Only here: the parameters of a tool may hold more.
    validate(tools=[{"type": "function", "name": "a", "parameters": references(65)}])
