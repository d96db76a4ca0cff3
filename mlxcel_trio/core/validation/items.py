"""Input items: which types there are, what each of them needs, and which parts it may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mlxcel_trio.core.history import reasoning_text, text_of
from mlxcel_trio.core.validation.refusals import check_choice, invalid, listed, missing, shown
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.items import InputItem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcel_trio.protocol.items import InputPart

_STATUSES = ("in_progress", "completed", "incomplete")
_MEDIA_PARTS = ("input_image", "input_file", "input_audio")

# "text" is the part type of chat completions; clients that speak both send it here too.
_PROMPT_PARTS = ("input_text", "text")
_MESSAGE_PARTS = {
    "user": _PROMPT_PARTS,
    "assistant": ("output_text", "refusal", "input_text", "text"),
    "system": _PROMPT_PARTS,
    "developer": _PROMPT_PARTS,
}
_TOOL_OUTPUT_PARTS = ("input_text", "output_text", "text")
_REASONING_PARTS = ("reasoning_text", "text")
_SUMMARY_PARTS = ("summary_text",)


def read_input(value: str | list[InputItem] | None, path: str = "input") -> tuple[InputItem, ...]:
    """The items of the field at ``path``: a string is one user message, every item gets its type.

    :raises InvalidRequestError: an unknown type or role, a missing field, a part that does not belong there.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (InputItem(type="message", role="user", content=value),)
    return tuple(_read_item(item, f"{path}[{index}]") for index, item in enumerate(value))


def check_not_empty(items: Sequence[InputItem], instructions: str | None) -> None:
    """Refuse a conversation, history included, in which nobody says or does anything.

    :raises InvalidRequestError: no text but white space, no call, nothing that stands for either.
    """
    if not _says_something(instructions or "") and not any(map(_has_content, items)):
        raise InvalidRequestError(
            "The conversation is empty: neither 'input' nor 'instructions' has any text. Send some.",
            param="input",
        )


def _read_item(item: InputItem, path: str) -> InputItem:
    if item.type is None:
        item = replace(item, type=_implied_type(item, path))
    check = _CHECKS.get(item.type or "")
    if check is None:
        raise invalid(
            f"{path}.type",
            f"items of type {shown(item.type or '')} are not supported. Use one of {listed(_CHECKS)}.",
        )
    check_choice(f"{path}.status", item.status, _STATUSES)
    check(item, path)
    return item


def _implied_type(item: InputItem, path: str) -> str:
    """The type that may be left out: of messages and, as in the published models, of references."""
    if item.role is not None:
        return "message"
    if item.id and item == InputItem(id=item.id):
        return "item_reference"
    raise missing(f"{path}.type", f"one of {listed(_CHECKS)}, or a 'role' for a message")


def _check_message(item: InputItem, path: str) -> None:
    if item.role is None:
        raise missing(f"{path}.role", f"one of {listed(_MESSAGE_PARTS)}")
    check_choice(f"{path}.role", item.role, _MESSAGE_PARTS)
    _check_content(item.content, f"{path}.content", _MESSAGE_PARTS[item.role])


def _check_function_call(item: InputItem, path: str) -> None:
    _require_text(item.call_id, f"{path}.call_id", "the id that the call's output refers to")
    _require_text(item.name, f"{path}.name", "the name of the function")
    if item.arguments is None:
        raise missing(f"{path}.arguments", "the arguments as a string")


def _check_function_call_output(item: InputItem, path: str) -> None:
    _require_text(item.call_id, f"{path}.call_id", "the id of the call it answers")
    _check_content(item.output, f"{path}.output", _TOOL_OUTPUT_PARTS)


def _check_reasoning(item: InputItem, path: str) -> None:
    if isinstance(item.content, str):
        raise invalid(f"{path}.content", f"it must be a list of parts of type {listed(_REASONING_PARTS)}.")
    _check_parts(item.content or [], f"{path}.content", _REASONING_PARTS)
    _check_parts(item.summary or [], f"{path}.summary", _SUMMARY_PARTS)


def _check_compaction(item: InputItem, path: str) -> None:
    _require_text(
        item.encrypted_content, f"{path}.encrypted_content", "the content as the server returned it"
    )


def _check_item_reference(item: InputItem, path: str) -> None:
    _require_text(item.id, f"{path}.id", "the id of the item that is meant")


_CHECKS: dict[str, Callable[[InputItem, str], None]] = {
    "message": _check_message,
    "function_call": _check_function_call,
    "function_call_output": _check_function_call_output,
    "reasoning": _check_reasoning,
    "compaction": _check_compaction,
    "item_reference": _check_item_reference,
}


def _require_text(value: str | None, path: str, expected: str) -> None:
    if not value:
        raise missing(path, expected)


def _check_content(content: str | list[InputPart] | None, path: str, accepted: tuple[str, ...]) -> None:
    if content is None:
        raise missing(path, "a string or a list of parts")
    if not isinstance(content, str):
        _check_parts(content, path, accepted)


def _check_parts(parts: list[InputPart], path: str, accepted: tuple[str, ...]) -> None:
    for index, part in enumerate(parts):
        part_path = f"{path}[{index}]"
        if part.type in _MEDIA_PARTS:
            raise invalid(
                f"{part_path}.type",
                f"the loaded model takes text only, no {shown(part.type)}. Remove the part.",
                code="unsupported_media",
            )
        if part.type is None:
            raise missing(f"{part_path}.type", f"one of {listed(accepted)}")
        check_choice(f"{part_path}.type", part.type, accepted)
        field, text = ("refusal", part.refusal) if part.type == "refusal" else ("text", part.text)
        if text is None:
            raise missing(f"{part_path}.{field}", "a string")


def _has_content(item: InputItem) -> bool:
    if item.type == "message":
        return _says_something(text_of(item.content))
    if item.type == "reasoning":
        return _says_something(reasoning_text(item))
    return True


def _says_something(text: str) -> bool:
    return bool(text) and not text.isspace()
