"""The two event streams that servers answer with, reduced to what is measured."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

_TEXT_DELTAS = frozenset({"response.output_text.delta", "response.reasoning_text.delta"})
_ENDS = frozenset({"response.completed", "response.incomplete"})


class Usage(Struct, frozen=True):
    """Token counts as the server reports them."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int


class Progress(Struct, frozen=True):
    """What one event says: there is more text, the answer is complete, or what it took."""

    text: bool = False
    complete: bool = False
    usage: Usage | None = None


Dialect = Callable[[bytes], Progress]
"""Reads the data of one event. :raises RuntimeError: the server reports an error."""


class EventReader:
    """Splits a response body into the data of its events. Comments and ``[DONE]`` are left out."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        *blocks, self._pending = (self._pending + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        lines = (line for block in blocks for line in block.split(b"\n"))
        found = (line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: "))
        return [data for data in found if data != b"[DONE]"]


class _Details(Struct):
    cached_tokens: int = 0


class _ResponseUsage(Struct):
    input_tokens: int
    output_tokens: int
    input_tokens_details: _Details


class _Response(Struct):
    usage: _ResponseUsage


class _ResponseEvent(Struct):
    type: str
    response: _Response | None = None


class _ChatUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Delta(Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct):
    delta: _Delta
    finish_reason: str | None = None


class _ChatChunk(Struct):
    choices: list[_Choice]
    usage: _ChatUsage | None = None


_decode_event = msgspec.json.Decoder(_ResponseEvent).decode
_decode_chunk = msgspec.json.Decoder(_ChatChunk).decode


def read_response_event(data: bytes) -> Progress:
    """An event of the Responses API. See :data:`Dialect`."""
    event = _decode_event(data)
    if event.type in _TEXT_DELTAS:
        return Progress(text=True)
    if event.type == "response.failed":
        raise RuntimeError(f"the server reports {data.decode()}")
    if event.type not in _ENDS or event.response is None:
        return Progress()
    usage = event.response.usage
    cached = usage.input_tokens_details.cached_tokens
    return Progress(complete=True, usage=Usage(usage.input_tokens, cached, usage.output_tokens))


def read_chat_chunk(data: bytes) -> Progress:
    """A chunk of the chat completions API. See :data:`Dialect`."""
    try:
        chunk = _decode_chunk(data)
    except msgspec.ValidationError:
        raise RuntimeError(f"the server reports {data.decode()}") from None
    text = any(_text_of(choice.delta) for choice in chunk.choices)
    complete = any(choice.finish_reason is not None for choice in chunk.choices)
    usage = None
    if chunk.usage is not None:
        cached = chunk.usage.prompt_tokens_details.cached_tokens
        usage = Usage(chunk.usage.prompt_tokens, cached, chunk.usage.completion_tokens)
    return Progress(text=text, complete=complete, usage=usage)


def _text_of(delta: _Delta) -> str:
    return delta.content or delta.reasoning or delta.reasoning_content or ""
