"""Every event of a response stream. ``type`` is the struct's tag and the frame's ``event:`` line."""

from __future__ import annotations

from msgspec import Struct

from mlxcel_trio.protocol.responses import ContentPart, OutputItem, Response, TokenLogprob


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base: ``sequence_number`` starts at 0 and rises by exactly one per event."""

    sequence_number: int


class ResponseCreated(Event, frozen=True, kw_only=True, tag="response.created"):
    """The request was admitted."""

    response: Response


class ResponseInProgress(Event, frozen=True, kw_only=True, tag="response.in_progress"):
    """Work has begun; repeated during silence so that idle timers do not fire."""

    response: Response


class OutputItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item was opened at the next ``output_index``."""

    output_index: int
    item: OutputItem


class OutputItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """The item is final."""

    output_index: int
    item: OutputItem


class ContentPartAdded(Event, frozen=True, kw_only=True, tag="response.content_part.added"):
    """An empty part was opened inside the item."""

    item_id: str
    output_index: int
    content_index: int
    part: ContentPart


class ContentPartDone(Event, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The part is final."""

    item_id: str
    output_index: int
    content_index: int
    part: ContentPart


class OutputTextDelta(Event, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text of a message."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: tuple[TokenLogprob, ...] = ()


class OutputTextDone(Event, frozen=True, kw_only=True, tag="response.output_text.done"):
    """All text of the part: the concatenation of its deltas."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningTextDelta(Event, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning text."""

    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(Event, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """All reasoning text of the part."""

    item_id: str
    output_index: int
    content_index: int
    text: str


class FunctionCallArgumentsDelta(
    Event, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More of a call's arguments, a fragment of JSON text."""

    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(
    Event, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """All arguments of the call."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class CompactionStarted(Event, frozen=True, kw_only=True, tag="mlx.compaction.started"):
    """Extension: the history is about to be compacted."""

    response_id: str
    input_tokens: int


class CompactionCompleted(Event, frozen=True, kw_only=True, tag="mlx.compaction.completed"):
    """Extension: the history was compacted."""

    response_id: str
    input_tokens_before: int
    input_tokens_after: int


class ResponseCompleted(Event, frozen=True, kw_only=True, tag="response.completed"):
    """Terminal: the model finished."""

    response: Response


class ResponseIncomplete(Event, frozen=True, kw_only=True, tag="response.incomplete"):
    """Terminal: cut short by a length limit, or cancelled."""

    response: Response


class ResponseFailed(Event, frozen=True, kw_only=True, tag="response.failed"):
    """Terminal: generation failed; ``response.error`` says why."""

    response: Response


TerminalEvent = ResponseCompleted | ResponseIncomplete | ResponseFailed
TERMINAL_EVENTS = (ResponseCompleted, ResponseIncomplete, ResponseFailed)
