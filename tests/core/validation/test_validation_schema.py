"""Schemas: dialects, limits, agreement with the official check, and time that is bounded."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft201909Validator, Draft202012Validator
from jsonschema.exceptions import SchemaError
from msgspec import Raw

from mlxcel_trio.core.validation.schema import MAX_BYTES, MAX_DEPTH, read_schema
from mlxcel_trio.errors import InvalidRequestError

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def read(schema: object) -> Raw:
    return read_schema(Raw(json.dumps(schema, separators=(",", ":"))), "here")


def refusal(schema: object) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        read(schema)
    assert caught.value.param == "here"
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 700
    return caught.value


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"anyOf": [{"type": "string"}, {"type": ["null", "integer"]}], "x-vendor": 1},
        {"properties": {"type": {"const": "objekt"}, "required": {"enum": [1, "a", None]}}},
        {"pattern": r"^\p{Lu}+$", "format": "no-such-format"},  # valid in JavaScript, not in Python
        {"$ref": "#/nowhere"},
    ],
)
def test_valid(schema: dict[str, Any]) -> None:
    assert json.loads(bytes(read(schema))) == schema


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "objekt"}, '["type"]'),
        ({"type": ["string", "string"]}, '["type"]'),
        ({"properties": {"a": {"minimum": "1"}}}, '["properties"]["a"]["minimum"]'),
        ({"items": {"anyOf": [{}, {"required": [1]}]}}, '["items"]["anyOf"][1]["required"][0]'),
        ({"properties": []}, '["properties"]'),
        ({"anyOf": []}, '["anyOf"]'),
        ({"maxItems": -1}, '["maxItems"]'),
        ({"maxItems": 1.5}, '["maxItems"]'),
        ({"$defs": {"a b\n": 1}}, '["$defs"]["a b\\n"]'),
    ],
)
def test_invalid_names_the_place(schema: dict[str, Any], place: str) -> None:
    assert place in refusal(schema).message


@pytest.mark.parametrize("dialect", [DRAFT_2020, DRAFT_2019, DRAFT_7, "http://json-schema.org/draft-06/schema#",
                                     "http://json-schema.org/draft-04/schema#"])  # fmt: skip
@pytest.mark.parametrize(
    "spelling", [str, lambda uri: uri.replace("http:", "https:"), lambda uri: uri.rstrip("#")]
)
def test_dialects(dialect: str, spelling: Any) -> None:
    read({"$schema": spelling(dialect), "type": "object"})
    refusal({"$schema": spelling(dialect), "type": "objekt"})


def test_the_dialect_decides() -> None:
    exclusive = {"minimum": 1, "exclusiveMinimum": True}  # a flag in draft 4, a number since
    read({"$schema": "http://json-schema.org/draft-04/schema#"} | exclusive)
    refusal({"$schema": DRAFT_7} | exclusive)
    refusal(exclusive)
    tuple_items: dict[str, Any] = {"items": [{}, {}]}  # prefixItems since 2020-12
    read({"$schema": DRAFT_7} | tuple_items)
    refusal(tuple_items)


@pytest.mark.parametrize("dialect", ["urn:mine", "", "http://json-schema.org/draft-99/schema#", 1, None, {}])
def test_unknown_dialects(dialect: object) -> None:
    assert "$schema" in refusal({"$schema": dialect}).message


@pytest.mark.parametrize("body", [b'{"a":"\xff"}', b"[" * 5000, b'{"a":1e999}', b"1", b'"x"', b"[]", b"true"])
def test_what_is_no_object(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_schema(Raw(body), "here")


def test_size() -> None:
    room = MAX_BYTES - len('{"title":""}')
    read({"title": "x" * room})
    assert str(MAX_BYTES + 1) in refusal({"title": "x" * (room + 1)}).message


def test_depth() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_DEPTH - 1):
        schema = {"not": schema}
    read(schema)
    read({"default": json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))})
    assert str(MAX_DEPTH + 1) in refusal({"not": schema}).message
    assert str(MAX_DEPTH + 1) in refusal({"default": json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)}).message


KEYWORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "anyOf",
        "required",
        "minLength",
        "enum",
        "not",
        "$defs",
        "$ref",
        "$anchor",
        "title",
        "additionalProperties",
        "prefixItems",
        "dependentRequired",
        "uniqueItems",
        "default",
        "minimum",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["string", "object", "x", "", "#/a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=10,
)


@given(schema=st.dictionaries(KEYWORDS, VALUES, max_size=4))
@settings(deadline=None)
@pytest.mark.parametrize(
    ("dialect", "official"),
    [(DRAFT_7, Draft7Validator), (DRAFT_2019, Draft201909Validator), (DRAFT_2020, Draft202012Validator)],
)
def test_agrees_with_the_official_check(dialect: str, official: Any, schema: dict[str, Any]) -> None:
    schema = {"$schema": dialect} | schema
    try:
        official.check_schema(schema, format_checker=None)
    except SchemaError:
        refusal(schema)
    else:
        read(schema)


LARGE: dict[str, tuple[bool, dict[str, Any]]] = {
    "anyOf": (True, {"anyOf": [{}] * 21_000}),
    "items": (True, {"$schema": DRAFT_7, "items": [{}] * 21_000}),
    "enum": (True, {"$schema": "http://json-schema.org/draft-04/schema#", "enum": ["a", *range(11_000)]}),
    "type": (False, {"type": ["a", *range(11_000)]}),
    "required": (False, {"required": [*map(str, range(8_000)), "0"]}),
}


@pytest.mark.parametrize(("valid", "schema"), LARGE.values(), ids=LARGE)
def test_the_largest_schemas_take_bounded_time(valid: bool, schema: dict[str, Any]) -> None:
    # Processor time, so that neighbours do not matter; comparing all pairs would take twenty seconds.
    started = time.process_time()
    if valid:
        read(schema)
    else:
        refusal(schema)
    assert time.process_time() - started < 5
