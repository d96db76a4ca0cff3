"""What two published models of the API say about our JSON, and the differences we have accepted.

The models are the types of the ``openai`` SDK and of ``openresponses_types`` (generated from the Open
Responses specification). Both are read strictly: no type coercion, no key they do not know.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import openresponses_types as openresponses
from openai.types import responses as openai_types
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList
from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic_core import ErrorDetails

Json = dict[str, Any]
ModelName = Literal["openai", "openresponses"]


class Difference(NamedTuple):
    """One thing that a model would not accept.

    ``path`` is the place inside the event or response, ``kind`` pydantic's error type. A path through an
    event's ``response`` is written as if the response stood alone.
    """

    model: ModelName
    path: str
    kind: str
    value: object


class Waiver(NamedTuple):
    """A difference that is meant; ``value`` narrows it to one JSON value where that is possible."""

    model: ModelName
    path: str
    kind: str
    reason: str
    value: object = None

    def covers(self, difference: Difference) -> bool:
        """Whether this waiver is about that difference."""
        same_place = self[:3] == difference[:3]
        return same_place and (self.value is None or self.value == difference.value)


_BYTES = (
    "the SDK models logprobs of stream events without bytes, those of the part with bytes; both are equal"
)
_ECHO = "the SDK's Response does not model it; Open Responses requires it"
_STATUS = "Open Responses models reasoning items without a status; the SDK has one"
_REASONING = "Open Responses names it response.reasoning.*, the SDK response.reasoning_text.*"
_CALL_NAME = "the API sends the name with function_call_arguments.done; neither model has it"

WAIVERS: tuple[Waiver, ...] = (
    Waiver("openai", "presence_penalty", "extra_forbidden", _ECHO),
    Waiver("openai", "frequency_penalty", "extra_forbidden", _ECHO),
    Waiver("openai", "store", "extra_forbidden", _ECHO),
    Waiver("openai", "name", "extra_forbidden", _CALL_NAME),
    Waiver("openai", "logprobs[].bytes", "extra_forbidden", _BYTES),
    Waiver("openai", "logprobs[].top_logprobs[].bytes", "extra_forbidden", _BYTES),
    Waiver(
        "openai",
        "error.code",
        "literal_error",
        "a code of this server: the queue was full when a job began",
        "server_overloaded",
    ),
    Waiver("openresponses", "background", "missing", "the key is absent from foreground responses"),
    Waiver("openresponses", "type", "enum", _REASONING, "response.reasoning_text.delta"),
    Waiver("openresponses", "type", "enum", _REASONING, "response.reasoning_text.done"),
    Waiver("openresponses", "text.format.schema", "none_required", "the model types the echo as null"),
    Waiver("openresponses", "name", "extra_forbidden", _CALL_NAME),
    Waiver("openresponses", "item.status", "extra_forbidden", _STATUS),
    Waiver("openresponses", "output[].status", "extra_forbidden", _STATUS),
    Waiver("openresponses", "conversation", "extra_forbidden", "the SDK has it, Open Responses does not"),
    Waiver("openresponses", "user", "extra_forbidden", "the SDK has it, Open Responses does not"),
    Waiver(
        "openresponses",
        "usage.input_tokens_details.cache_write_tokens",
        "extra_forbidden",
        "the SDK requires it, Open Responses does not have it",
    ),
)

# Paths in the models of Open Responses begin at an item, since they know no list of items.
ITEM_WAIVERS: tuple[Waiver, ...] = (Waiver("openresponses", "status", "extra_forbidden", _STATUS),)


def _openai_events() -> dict[str, type[BaseModel]]:
    union, _ = get_args(openai_types.ResponseStreamEvent)
    return {get_args(event.model_fields["type"].annotation)[0]: event for event in get_args(union)}


_OPENAI_EVENTS = _openai_events()
_OPENRESPONSES_EVENTS: dict[str, type[BaseModel]] = {
    "response.created": openresponses.ResponseCreatedStreamingEvent,
    "response.in_progress": openresponses.ResponseInProgressStreamingEvent,
    "response.completed": openresponses.ResponseCompletedStreamingEvent,
    "response.incomplete": openresponses.ResponseIncompleteStreamingEvent,
    "response.failed": openresponses.ResponseFailedStreamingEvent,
    "response.output_item.added": openresponses.ResponseOutputItemAddedStreamingEvent,
    "response.output_item.done": openresponses.ResponseOutputItemDoneStreamingEvent,
    "response.content_part.added": openresponses.ResponseContentPartAddedStreamingEvent,
    "response.content_part.done": openresponses.ResponseContentPartDoneStreamingEvent,
    "response.output_text.delta": openresponses.ResponseOutputTextDeltaStreamingEvent,
    "response.output_text.done": openresponses.ResponseOutputTextDoneStreamingEvent,
    "response.reasoning_text.delta": openresponses.ResponseReasoningDeltaStreamingEvent,
    "response.reasoning_text.done": openresponses.ResponseReasoningDoneStreamingEvent,
    "response.function_call_arguments.delta": openresponses.ResponseFunctionCallArgumentsDeltaStreamingEvent,
    "response.function_call_arguments.done": openresponses.ResponseFunctionCallArgumentsDoneStreamingEvent,
}
EVENT_TYPES = frozenset(_OPENRESPONSES_EVENTS)
_OPENRESPONSES_ITEMS: dict[str, type[BaseModel]] = {
    "message": openresponses.Message,
    "function_call": openresponses.FunctionCall,
    "function_call_output": openresponses.FunctionCallOutput,
    "reasoning": openresponses.ReasoningBody,
    "compaction": openresponses.CompactionBody,
}

_OPENAI_OBJECTS: dict[str, type[BaseModel]] = {
    "conversation": Conversation,
    "conversation.deleted": ConversationDeletedResource,
    "response.input_tokens": openai_types.InputTokenCountResponse,
}


def event_differences(event: Json, waivers: Sequence[Waiver] = WAIVERS) -> list[Difference]:
    """What the models hold against an event of a type in ``EVENT_TYPES``, waived differences left out."""
    models: list[tuple[ModelName, type[BaseModel]]] = [
        ("openai", _OPENAI_EVENTS[event["type"]]),
        ("openresponses", _OPENRESPONSES_EVENTS[event["type"]]),
    ]
    return list(_unwaived(event, models, waivers))


def response_differences(response: Json, waivers: Sequence[Waiver] = WAIVERS) -> list[Difference]:
    """What the models hold against a response object, waived differences left out."""
    models: list[tuple[ModelName, type[BaseModel]]] = [
        ("openai", openai_types.Response),
        ("openresponses", openresponses.ResponseResource),
    ]
    return list(_unwaived(response, models, waivers))


def item_list_differences(page: Json, waivers: Sequence[Waiver] = ITEM_WAIVERS) -> list[Difference]:
    """What the models hold against a page of items of a response or a conversation, waived ones left out."""
    lists: list[tuple[ModelName, type[BaseModel]]] = [
        ("openai", openai_types.ResponseItemList),
        ("openai", ConversationItemList),
    ]
    found = list(_unwaived(page, lists, waivers))
    for item in page["data"]:
        found += _unwaived(item, [("openresponses", _OPENRESPONSES_ITEMS[item["type"]])], waivers)
    return found


def object_differences(value: Json) -> list[Difference]:
    """What the SDK's model holds against an object that Open Responses does not know."""
    return list(_unwaived(value, [("openai", _OPENAI_OBJECTS[value["object"]])], ()))


def _unwaived(
    value: Json, models: list[tuple[ModelName, type[BaseModel]]], waivers: Sequence[Waiver]
) -> Iterator[Difference]:
    # Strict mode reads JSON arrays and enum values from JSON text only.
    text = json.dumps(value)
    for name, model in models:
        for difference in _differences(name, model, text):
            if not any(waiver.covers(difference) for waiver in waivers):
                yield difference


def _differences(name: ModelName, model: type[BaseModel], text: str) -> list[Difference]:
    try:
        model.model_validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        details = _chosen_branches(error.errors(include_url=False, include_context=False))
        return [Difference(name, _path(detail["loc"]), detail["type"], detail["input"]) for detail in details]
    return []


def _is_branch(step: int | str) -> bool:
    """Whether a step of a location names a member of a union, as in ``item, ResponseOutputMessage, id``."""
    return isinstance(step, str) and step[:1].isupper()


def _chosen_branches(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Errors without those of union members that the value's ``type`` rules out."""
    ruled_out = {
        detail["loc"][:-1]
        for detail in details
        if detail["loc"][-1] == "type" and len(detail["loc"]) > 1 and _is_branch(detail["loc"][-2])
    }
    chosen = [
        detail
        for detail in details
        if not any(detail["loc"][: len(branch)] == branch for branch in ruled_out)
    ]
    return chosen or details


def _path(location: tuple[int | str, ...]) -> str:
    steps = ["[]" if isinstance(step, int) else f".{step}" for step in location if not _is_branch(step)]
    return "".join(steps).removeprefix(".").removeprefix("response.")
