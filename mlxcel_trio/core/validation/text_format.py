"""The output format, flat or in the nested form of chat completions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlxcel_trio.core.validation.free_form import is_null
from mlxcel_trio.core.validation.refusals import check_choice, invalid, listed, missing, shown
from mlxcel_trio.core.validation.schema import read_schema
from mlxcel_trio.protocol.tools import (
    JsonObjectFormat,
    JsonSchemaFormat,
    PlainTextFormat,
    TextConfig,
)

if TYPE_CHECKING:
    from mlxcel_trio.protocol.tools import TextFormat, TextFormatParam, TextParam

MAX_REFERENCES = 64

_TYPES = ("text", "json_object", "json_schema")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_text(text: TextParam | None) -> TextConfig:
    """The ``text`` object with its format settled; the schema is copied out of the request body.

    :raises InvalidRequestError: an unknown type, a missing name or schema, a schema over its limits.
    """
    if text is None:
        return TextConfig(format=PlainTextFormat())
    return TextConfig(format=_read_format(text.format), verbosity=text.verbosity)


def _read_format(param: TextFormatParam | None) -> TextFormat:
    if param is None:
        return PlainTextFormat()
    if param.type is None:
        raise missing("text.format.type", f"one of {listed(_TYPES)}")
    check_choice("text.format.type", param.type, _TYPES)
    if param.type == "json_schema":
        return _read_json_schema(param)
    return JsonObjectFormat() if param.type == "json_object" else PlainTextFormat()


def _read_json_schema(param: TextFormatParam) -> JsonSchemaFormat:
    nested = param.json_schema if param.name is None and is_null(param.schema) else None
    body, path = (param, "text.format") if nested is None else (nested, "text.format.json_schema")
    if body.name is None:
        raise missing(f"{path}.name", "a name for the format")
    if not _NAME.fullmatch(body.name):
        raise invalid(
            f"{path}.name", f"{shown(body.name)} is no name. Use 1 to 64 of A-Z, a-z, 0-9, '_', '-'."
        )
    if is_null(body.schema):
        raise missing(f"{path}.schema", "a JSON Schema object")
    return JsonSchemaFormat(
        name=body.name,
        description=body.description,
        schema=read_schema(body.schema, f"{path}.schema", max_references=MAX_REFERENCES),
        strict=bool(body.strict),
    )
