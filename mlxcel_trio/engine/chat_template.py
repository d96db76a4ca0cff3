"""A chat template and what it demands of a dialogue.

Templates differ in the roles, orders, call ids and argument forms they take, and say so only by failing. A
few short dialogues, rendered once when the model is loaded, tell what a template refuses; every dialogue is
then brought into the form it accepts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from mlxcel_trio.core.messages import ChatMessage, ToolCall
from mlxcel_trio.errors import UnsupportedModelError, one_line

if TYPE_CHECKING:
    from mlxcel_trio.engine.markup import Markup

Renderer = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None, Mapping[str, Any]], str]
"""``(messages, tools, template variables) -> text``; raises whatever the template raises."""

_PROBE = "Quartz vow 7351"
_PROBE_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {}}}
_SHORT_ID = "a1B2c3D4e"
_LONG_ID = "call_0123456789abcdef"

_MAX_ARGUMENT_DEPTH = 64


class TemplateTraits(Struct, frozen=True):
    """What a template takes.

    ``user_first``: the first turn must be a user's. ``short_call_ids``: call ids must be nine letters and
    digits. ``arguments`` is the form in which it takes a JSON object; ``text_arguments`` tells whether it
    also takes text that is not one.
    """

    system_role: bool
    user_first: bool
    short_call_ids: bool
    arguments: Literal["object", "text"]
    text_arguments: bool


def probe(render: Renderer, *, for_tools: bool = False) -> TemplateTraits:
    """Find out what a template takes; ``for_tools``: it is rendered only where there are tools.

    :raises UnsupportedModelError: it cannot render a plain user message.
    """
    some_tools = [_PROBE_TOOL]
    usual_tools = some_tools if for_tools else None
    user, assistant = {"role": "user", "content": _PROBE}, {"role": "assistant", "content": "b"}
    try:
        plain = render([user], usual_tools, {})
    except Exception as error:  # a template is somebody's program and may raise anything
        raise UnsupportedModelError(
            f"The chat template cannot render a plain user message: {one_line(error)}. "
            "Pass a working one with --chat-template-file."
        ) from None
    if _PROBE not in plain:
        raise UnsupportedModelError(
            "The chat template leaves out the text of a user message. "
            "Pass another one with --chat-template-file."
        )

    def accepted(*turns: dict[str, Any], tools: list[dict[str, Any]] | None = usual_tools) -> str | None:
        try:
            return render(list(turns), tools, {})
        except Exception:  # the answer to the question
            return None

    def called(call_id: str, arguments: Any) -> str | None:
        call = {"id": call_id, "type": "function", "function": {"name": "probe", "arguments": arguments}}
        asks = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "content": "c", "name": "probe", "tool_call_id": call_id}
        return accepted(user, asks, result, tools=some_tools)

    system = accepted({"role": "system", "content": _PROBE}, {"role": "user", "content": "a"})
    as_object, as_text = called(_SHORT_ID, {"probe": 1}), called(_SHORT_ID, '{"probe": 1}')
    # A template that expects text and prints an object shows Python's notation of it.
    takes_objects = as_object is not None and "{'probe'" not in as_object
    with_long_id = called(_LONG_ID, {"probe": 1} if takes_objects else '{"probe": 1}')
    return TemplateTraits(
        system_role=system is not None and _PROBE in system,
        user_first=accepted(assistant, user) is None and accepted(user, assistant, user) is not None,
        short_call_ids=(as_object is not None or as_text is not None) and with_long_id is None,
        arguments="object" if takes_objects or as_text is None else "text",
        text_arguments=as_text is not None,
    )


def arrange(messages: Sequence[ChatMessage], traits: TemplateTraits) -> list[ChatMessage]:
    """The same dialogue in turns that the template takes.

    Without a system role the system text leads the first user turn. Where a user must begin, an empty user
    turn goes before an assistant who speaks first.
    """
    turns = list(messages)
    system = turns.pop(0) if turns and turns[0].role == "system" else None
    if system is not None and not traits.system_role:
        texts = [system.content]
        if turns and turns[0].role == "user":
            texts.append(turns.pop(0).content)
        return [ChatMessage("user", "\n\n".join(texts)), *turns]
    if traits.user_first and turns and turns[0].role == "assistant":
        turns.insert(0, ChatMessage("user", ""))
    return turns if system is None else [system, *turns]


class Notation:
    """Writes one dialogue as the JSON values a template reads, with every text from outside guarded.

    A call id keeps its notation from the call to its result.
    """

    def __init__(self, traits: TemplateTraits, markup: Markup, sentinel: str) -> None:
        self._traits = traits
        self._markup = markup
        self._sentinel = sentinel
        self._call_ids: dict[str, str] = {}
        self._called_names: dict[str, str] = {}

    def messages(self, turns: Iterable[ChatMessage]) -> list[dict[str, Any]]:
        """Chat messages in the form of the chat-completions API."""
        return [self._message(turn) for turn in turns]

    def tools(self, tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Functions, flat or nested, in the nested form; what a template does not expect is left out."""
        return [
            {"type": "function", "function": self._function(tool.get("function") or tool)} for tool in tools
        ]

    def variables(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Template variables; their names stay as they are."""
        return {name: self._markup.guard_data(value, self._sentinel) for name, value in values.items()}

    def _message(self, turn: ChatMessage) -> dict[str, Any]:
        message: dict[str, Any] = {"role": turn.role, "content": self._text(turn.content)}
        if turn.reasoning is not None:
            # Three names are in use; a template reads one of them.
            reasoning = self._text(turn.reasoning)
            message |= {"reasoning_content": reasoning, "thinking": reasoning, "reasoning": reasoning}
        if turn.tool_calls:
            message["tool_calls"] = [self._call(call) for call in turn.tool_calls]
        if turn.call_id is not None:
            message["tool_call_id"] = self._call_id(turn.call_id)
            if turn.call_id in self._called_names:
                message["name"] = self._called_names[turn.call_id]
        return message

    def _call(self, call: ToolCall) -> dict[str, Any]:
        name = self._called_names[call.call_id] = self._markup.guard_name(call.name, self._sentinel)
        function = {"name": name, "arguments": self._arguments(call.arguments)}
        return {"id": self._call_id(call.call_id), "type": "function", "function": function}

    def _arguments(self, text: str) -> Any:
        parsed = _json_object(text)
        if parsed is None:
            raw = self._text(text)
            return raw if self._traits.text_arguments else {"arguments": raw}
        if self._traits.arguments == "text":
            return self._text(text)
        return self._markup.guard_data(parsed, self._sentinel)

    def _function(self, function: Mapping[str, Any]) -> dict[str, Any]:
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        return {
            "name": self._markup.guard_name(function["name"], self._sentinel),
            "description": self._text(function.get("description") or ""),
            "parameters": self._markup.guard_data(parameters, self._sentinel),
        }

    def _call_id(self, call_id: str) -> str:
        if not self._traits.short_call_ids:
            return self._text(call_id)
        if call_id not in self._call_ids:
            taken, attempt = set(self._call_ids.values()), 0
            while (short := _short_id(call_id, attempt)) in taken:
                attempt += 1
            self._call_ids[call_id] = short
        return self._call_ids[call_id]

    def _text(self, text: str) -> str:
        return self._markup.guard(text, self._sentinel)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value if isinstance(value, dict) and _depth_within(value, _MAX_ARGUMENT_DEPTH) else None


def _depth_within(value: Any, limit: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return limit > 0 and all(_depth_within(item, limit - 1) for item in inner)


def _short_id(call_id: str, attempt: int) -> str:
    """Nine letters and digits, the same in every rendering so that cached prefixes stay valid."""
    if attempt == 0 and re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(f"{attempt}:{call_id}".encode()).hexdigest()[:9]
