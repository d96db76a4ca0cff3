"""Items on their way into transcripts and out of them.

What goes in has the form in which the API lists items: an id, a status, contents as lists of parts. Reading
it back gives what the request or the response said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from mlxcel_trio.core.transcript import StoredItem
from mlxcel_trio.protocol.codec import encode_to_keep
from mlxcel_trio.protocol.items import InputItem
from mlxcel_trio.protocol.responses import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mlxcel_trio.protocol.items import InputPart
    from mlxcel_trio.protocol.responses import OutputItem

_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}

_decoder = msgspec.json.Decoder(InputItem)


def store_input(item: InputItem, item_id: str) -> StoredItem:
    """A validated item of a request under the id that it has from now on. References have to be resolved."""
    return StoredItem(item_id, encode_to_keep({"id": item_id, "type": item.type} | _fields(item)))


def fresh_id(item: InputItem, new_id: Callable[[str], str]) -> str:
    """An id for an item that came without one."""
    return new_id(_ID_PREFIXES[item.type or ""])


def has_server_id(item: InputItem) -> bool:
    """Whether the id of an item looks like one that was made here, and not like one that a client made up."""
    return (item.id or "").startswith(f"{_ID_PREFIXES[item.type or '']}_")


def store_output(item: OutputItem) -> StoredItem:
    """An item of a response. Log probabilities are left out: no prompt needs them, and they are large."""
    if isinstance(item, Message):
        item = replace(item, content=tuple(replace(part, logprobs=()) for part in item.content))
    return StoredItem(item.id, encode_to_keep(item))


def read_items(items: Iterable[StoredItem]) -> list[InputItem]:
    """The items as a request would send them."""
    return [_decoder.decode(item.encoded) for item in items]


def _fields(item: InputItem) -> dict[str, Any]:
    status = item.status or "completed"
    match item.type:
        case "message":
            assistant = item.role == "assistant"
            return {"status": status, "role": item.role, "content": _message_parts(item, assistant=assistant)}
        case "function_call":
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {"status": status} | call
        case "function_call_output":
            output = item.output if isinstance(item.output, str) else _texts(item.output, "input_text")
            return {"status": status, "call_id": item.call_id, "output": output}
        case "reasoning":
            return _reasoning_fields(item)
        case "compaction":
            return {"encrypted_content": item.encrypted_content}
        case other:
            raise ValueError(f"An item of type {other!r} cannot be stored. Resolve it first.")


def _message_parts(item: InputItem, *, assistant: bool) -> list[dict[str, Any]]:
    if item.content is None:
        return []
    if isinstance(item.content, str):
        return [_message_text(item.content, assistant=assistant)]
    return [
        {"type": "refusal", "refusal": part.refusal}
        if part.type == "refusal"
        else _message_text(part.text, assistant=assistant)
        for part in item.content
    ]


def _message_text(text: str | None, *, assistant: bool) -> dict[str, Any]:
    if assistant:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _reasoning_fields(item: InputItem) -> dict[str, Any]:
    fields: dict[str, Any] = {"summary": _texts(item.summary, "summary_text")}
    if item.status is not None:
        fields["status"] = item.status
    if item.content is not None:
        fields["content"] = _texts(item.content, "reasoning_text")
    if item.encrypted_content is not None:
        fields["encrypted_content"] = item.encrypted_content
    return fields


def _texts(parts: str | list[InputPart] | None, kind: str) -> list[dict[str, Any]]:
    if isinstance(parts, str):
        return [{"type": kind, "text": parts}]
    return [{"type": kind, "text": part.text} for part in parts or ()]
