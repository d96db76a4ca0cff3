"""JSON Schemas inside a request: well-formed, of a known dialect, and small enough to be checked quickly.

A schema is checked against the meta-schema of the dialect that its ``$schema`` names, 2020-12 if it names
none. Two things differ from ``jsonschema``'s own ``check_schema``, both to keep the time linear in the size
of the schema: the meta-schemas of 2020-12 and 2019-09 are folded into one document each, where following
their dynamic references takes twelve times as long, and ``uniqueItems`` does not compare every pair.
``format`` is not checked, because patterns are regular expressions of JavaScript, not of Python.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from mlxcel_trio.core.validation.free_form import byte_length, decode_object
from mlxcel_trio.core.validation.refusals import invalid, listed, shown
from mlxcel_trio.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema.protocols import Validator
    from msgspec import Raw

MAX_BYTES = 64 * 1024
MAX_DEPTH = 32

_DEFAULT_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def read_schema(raw: Raw, path: str, *, max_references: int | None = None) -> Raw:
    """Check a schema and return it as it was sent, copied out of the request body.

    :param max_references: how many ``$ref`` it may hold, without a bound when ``None``.
    :raises InvalidRequestError: no object, too large, too deep, an unknown dialect, or no valid schema.
    """
    if byte_length(raw) > MAX_BYTES:
        raise invalid(path, f"{byte_length(raw)} bytes are too many. Use at most {MAX_BYTES}.")
    schema = decode_object(raw, path)
    depth, references = _measure(schema)
    if depth > MAX_DEPTH:
        raise invalid(path, f"it is nested {depth} levels deep. Use at most {MAX_DEPTH}.")
    if max_references is not None and references > max_references:
        raise invalid(path, f"{references} references are too many. Use at most {max_references} '$ref'.")
    problem = best_match(islice(_validator(schema, path).iter_errors(schema), 1))
    if problem is not None:
        place = "".join(f"[{json.dumps(step)}]" for step in problem.absolute_path) or "its top level"
        raise invalid(
            path, f"it is not a valid JSON Schema at {one_line(place)}: {one_line(problem.message)}."
        )
    return raw.copy()


def _measure(schema: dict[str, Any]) -> tuple[int, int]:
    """Levels of nesting, the schema itself being the first, and the number of ``$ref`` with a target."""
    depth, references = 0, 0
    level: list[Any] = [schema]
    while level:
        depth += 1
        inside: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                references += isinstance(container.get("$ref"), str)
                container = container.values()
            inside += (value for value in container if isinstance(value, dict | list))
        level = inside
    return depth, references


def _validator(schema: dict[str, Any], path: str) -> Validator:
    dialect = schema.get("$schema", _DEFAULT_DIALECT)
    if not isinstance(dialect, str):
        raise invalid(path, "its '$schema' must be a string.")
    validator = _VALIDATORS.get(_bare(dialect))
    if validator is None:
        raise invalid(
            path, f"the dialect {shown(dialect)} is not known. Use a '$schema' of {listed(_VALIDATORS)}."
        )
    return validator


def _bare(dialect: str) -> str:
    # Clients write http and https, with and without the empty fragment.
    return dialect.rpartition("://")[2].removesuffix("#")


def _unique_items(_validator: Validator, required: bool, items: object, _schema: object) -> Iterator[Any]:
    if required and isinstance(items, list) and len(set(map(_canonical, items))) < len(items):
        yield ValidationError("an element occurs twice")


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _folded(meta_schema: dict[str, Any]) -> dict[str, Any]:
    """A meta-schema that is made of vocabularies, as one document that refers to itself."""
    folder, _, _ = meta_schema["$id"].rpartition("/")
    vocabularies = [REGISTRY.contents(f"{folder}/{part['$ref']}") for part in meta_schema["allOf"]]
    folded: dict[str, Any] = {"type": ["object", "boolean"], "properties": {}, "$defs": {}}
    for part in [*vocabularies, meta_schema]:
        for keyword in ("properties", "$defs"):
            folded[keyword] |= part.get(keyword, {})
    text = json.dumps(folded)
    for to_itself in ('"$dynamicRef": "#meta"', '"$recursiveRef": "#"'):
        text = text.replace(to_itself, '"$ref": "#"')
    result: dict[str, Any] = json.loads(text)
    return result


def _validators() -> dict[str, Validator]:
    validators = {}
    for dialect in (
        Draft202012Validator,
        Draft201909Validator,
        Draft7Validator,
        Draft6Validator,
        Draft4Validator,
    ):
        meta_schema = dialect.META_SCHEMA
        identifier = _bare(meta_schema.get("$id") or meta_schema["id"])
        if "allOf" in meta_schema:
            meta_schema = _folded(meta_schema)
        validators[identifier] = extend(dialect, {"uniqueItems": _unique_items})(  # type: ignore[no-untyped-call]
            meta_schema
        )
    return validators


_VALIDATORS = _validators()
