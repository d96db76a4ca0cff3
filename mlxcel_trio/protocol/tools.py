"""Tools, tool choice and output format, as sent and as echoed.

``Raw`` fields keep free-form JSON exactly as the client sent it. A decoded ``Raw`` is a view of the whole
request body: whoever keeps one beyond the request copies it first (``Raw.copy``).
"""

from __future__ import annotations

from msgspec import Raw, Struct

NULL = Raw(b"null")


class FunctionBody(Struct, frozen=True):
    """The nested ``function`` object of the chat-completions form of a tool."""

    name: str | None = None
    description: str | None = None
    parameters: Raw = NULL
    strict: bool | None = None


class ToolParam(Struct, frozen=True):
    """An element of ``tools``, flat or in the nested chat form."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: Raw = NULL
    strict: bool | None = None
    function: FunctionBody | None = None


class FunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A function tool as echoed; ``parameters`` is a JSON Schema object or null."""

    name: str
    description: str | None
    parameters: Raw
    strict: bool | None


class ToolName(Struct, frozen=True):
    """A reference to a tool inside ``tool_choice``."""

    type: str | None = None
    name: str | None = None


class ToolChoiceParam(Struct, frozen=True):
    """The object forms of ``tool_choice``: a named function or ``allowed_tools``."""

    type: str | None = None
    name: str | None = None
    mode: str | None = None
    tools: list[ToolName] | None = None
    function: ToolName | None = None


class NamedToolChoice(Struct, frozen=True, tag_field="type", tag="function"):
    """``tool_choice`` that names one function, as echoed."""

    name: str


class AllowedToolsChoice(Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """``tool_choice`` that narrows the callable tools, as echoed."""

    mode: str
    tools: tuple[NamedToolChoice, ...]


ToolChoice = str | NamedToolChoice | AllowedToolsChoice


class JsonSchemaBody(Struct, frozen=True):
    """The nested ``json_schema`` object of the chat-completions form of a format."""

    name: str | None = None
    description: str | None = None
    schema: Raw = NULL
    strict: bool | None = None


class TextFormatParam(Struct, frozen=True):
    """``text.format``, flat or in the nested chat form."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    schema: Raw = NULL
    strict: bool | None = None
    json_schema: JsonSchemaBody | None = None


class TextParam(Struct, frozen=True):
    """The ``text`` object of a request."""

    format: TextFormatParam | None = None
    verbosity: str | None = None


class PlainTextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Free text, the default."""


class JsonObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """A document that satisfies ``schema``."""

    name: str
    description: str | None
    schema: Raw
    strict: bool


TextFormat = PlainTextFormat | JsonObjectFormat | JsonSchemaFormat


class TextConfig(Struct, frozen=True, omit_defaults=True):
    """The ``text`` object of a response; ``verbosity`` appears only when it was sent."""

    format: TextFormat
    verbosity: str | None = None
