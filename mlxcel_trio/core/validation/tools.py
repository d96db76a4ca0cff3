"""Tools and tool choice: functions only, in this API's flat form or the nested one of chat completions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlxcel_trio.core.validation.free_form import byte_length, is_null
from mlxcel_trio.core.validation.refusals import check_choice, invalid, listed, missing, shown
from mlxcel_trio.core.validation.schema import read_schema
from mlxcel_trio.protocol.tools import (
    NULL,
    AllowedToolsChoice,
    FunctionTool,
    NamedToolChoice,
    ToolChoiceParam,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mlxcel_trio.protocol.tools import FunctionBody, ToolChoice, ToolName, ToolParam

MAX_TOOLS = 128
MAX_PARAMETERS_BYTES = 256 * 1024
"""Bound on the parameters of all tools together, so that checking them takes bounded time."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHOICES = ("auto", "none", "required")
_CHOICE_TYPES = ("function", "allowed_tools")
_ALLOWED_TOOLS_MODES = ("auto", "required")


def unsupported_tools(tools: Sequence[ToolParam] | None) -> dict[int, str]:
    """Index and type of every tool that is not a function."""
    return {index: tool.type for index, tool in enumerate(tools or ()) if tool.type not in (None, "function")}


def read_tools(tools: Sequence[ToolParam] | None, *, ignore_unsupported: bool) -> tuple[FunctionTool, ...]:
    """The function tools, flat, with their parameters copied out of the request body.

    :param ignore_unsupported: drop tools of other types instead of refusing them.
    :raises InvalidRequestError: another type, too many, a bad or repeated name, parameters of no schema.
    """
    unsupported = unsupported_tools(tools)
    if unsupported and not ignore_unsupported:
        index, tool_type = next(iter(unsupported.items()))
        raise invalid(
            f"tools[{index}].type",
            f"tools of type {shown(tool_type)} are not supported. Use 'function', "
            "or start the server with --ignore-unsupported-tools.",
        )
    functions = {index: tool for index, tool in enumerate(tools or ()) if index not in unsupported}
    if len(functions) > MAX_TOOLS:
        raise invalid("tools", f"{len(functions)} tools are too many. Send at most {MAX_TOOLS}.")
    if sum(byte_length(_body(tool).parameters) for tool in functions.values()) > MAX_PARAMETERS_BYTES:
        raise invalid("tools", f"the parameters exceed {MAX_PARAMETERS_BYTES} bytes. Send fewer tools.")
    read: dict[str, FunctionTool] = {}
    for index, tool in functions.items():
        function = _read_tool(tool, f"tools[{index}]", taken=read)
        read[function.name] = function
    return tuple(read.values())


def read_tool_choice(choice: str | ToolChoiceParam | None, tools: Sequence[FunctionTool]) -> ToolChoice:
    """The choice in its flat form; ``"auto"`` when absent.

    :raises InvalidRequestError: an unknown form, a function that ``tools`` lacks, required without any.
    """
    if choice is None:
        return "auto"
    declared = {tool.name for tool in tools}
    if isinstance(choice, str):
        check_choice("tool_choice", choice, _CHOICES)
        if choice == "required" and not tools:
            raise invalid("tool_choice", "'required' needs at least one function in 'tools'.")
        return choice
    if choice.type is None:
        raise missing("tool_choice.type", f"one of {listed(_CHOICE_TYPES)}")
    check_choice("tool_choice.type", choice.type, _CHOICE_TYPES)
    if choice.type == "allowed_tools":
        return _read_allowed_tools(choice, declared)
    if choice.name is None and choice.function is not None:
        return _read_name(choice.function.name, "tool_choice.function.name", declared)
    return _read_name(choice.name, "tool_choice.name", declared)


def _body(tool: ToolParam) -> ToolParam | FunctionBody:
    return tool.function if tool.function is not None and tool.name is None else tool


def _read_tool(tool: ToolParam, path: str, *, taken: Collection[str]) -> FunctionTool:
    if tool.type is None:
        raise missing(f"{path}.type", "'function'")
    body = _body(tool)
    if body is not tool:
        path = f"{path}.function"
    if body.name is None:
        raise missing(f"{path}.name", "the name of the function")
    if not _NAME.fullmatch(body.name):
        raise invalid(
            f"{path}.name", f"{shown(body.name)} is no name. Use 1 to 64 of A-Z, a-z, 0-9, '_', '.', '-'."
        )
    if body.name in taken:
        raise invalid(f"{path}.name", f"another tool is named {shown(body.name)}. Give each its own name.")
    return FunctionTool(
        name=body.name,
        description=body.description,
        parameters=NULL if is_null(body.parameters) else read_schema(body.parameters, f"{path}.parameters"),
        strict=body.strict,
    )


def _read_allowed_tools(choice: ToolChoiceParam, declared: Collection[str]) -> AllowedToolsChoice:
    if choice.mode is None:
        raise missing("tool_choice.mode", f"one of {listed(_ALLOWED_TOOLS_MODES)}")
    check_choice("tool_choice.mode", choice.mode, _ALLOWED_TOOLS_MODES)
    if not choice.tools:
        raise missing("tool_choice.tools", "the functions that may be called")
    tools = tuple(
        _read_reference(tool, f"tool_choice.tools[{index}]", declared)
        for index, tool in enumerate(choice.tools)
    )
    return AllowedToolsChoice(mode=choice.mode, tools=tools)


def _read_reference(tool: ToolName, path: str, declared: Collection[str]) -> NamedToolChoice:
    if tool.type is None:
        raise missing(f"{path}.type", "'function'")
    check_choice(f"{path}.type", tool.type, ("function",))
    return _read_name(tool.name, f"{path}.name", declared)


def _read_name(name: str | None, path: str, declared: Collection[str]) -> NamedToolChoice:
    if name is None:
        raise missing(path, "the name of a function in 'tools'")
    if name not in declared:
        raise invalid(path, f"no function in 'tools' is named {shown(name)}. Declare it or name another.")
    return NamedToolChoice(name)
