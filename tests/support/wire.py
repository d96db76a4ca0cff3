"""Strict checks of what the server sends, for every test that holds decoded JSON.

``validate_event`` and ``validate_response`` look at one object, ``check_stream`` at a whole stream:
each raises :class:`AssertionError` that names the event and what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from openai import omit
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from support.objects import validate_event, validate_response
from support.streams import StreamChecker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.published import Json

__all__ = ["StreamChecker", "accumulate", "check_stream", "validate_event", "validate_response"]


def check_stream(events: Sequence[Json]) -> Json:
    """Check a whole stream, from ``response.created`` to its terminal event; returns the final response."""
    checker = StreamChecker()
    for event in events:
        checker.feed(event)
    response = checker.finish()
    accumulated = accumulate(events)
    assert accumulated == response, f"the SDK adds the events up to {accumulated}, the response is {response}"
    return response


def accumulate(events: Sequence[Json]) -> Json:
    """Run a stream, or the start of one, through the OpenAI SDK's accumulator.

    The result is the last response object seen, with the output that the SDK collected: items as their done
    events give them, but their text and arguments added up from the deltas. An item without a done event is
    what the SDK knows of it.
    """
    state = ResponseStreamState[object](input_tools=omit, text_format=omit)
    response: Json = {}
    for event in events:
        # The SDK builds events without validation too: unknown types and keys must not stop it.
        state.handle_event(cast("Any", construct_type(type_=ResponseStreamEvent, value=event)))
        response = event.get("response", response)
    output = [_accumulated_item(state, index) for index in sorted(state._output_items)]
    completed = state._completed_response
    if completed is not None:
        parsed = _without_parsed(completed.to_dict(mode="json", warnings=False))
        assert parsed == response, f"the SDK reads the final response as {parsed}"
    return {**response, "output": output}


def _accumulated_item(state: ResponseStreamState[object], index: int) -> Json:
    summed: Json = state._output_items[index].to_dict(mode="json", warnings=False)
    done = state._completed_output.get(index)
    if done is None:
        return summed
    item: Json = done.to_dict(mode="json", warnings=False)
    if item["type"] == "function_call":
        item["arguments"] = summed["arguments"]
    if item["type"] == "message":
        texts = [part["text"] for part in summed["content"]]
        item["content"] = [{**part, "text": text} for part, text in zip(item["content"], texts, strict=True)]
    return item


def _without_parsed(value: Any) -> Any:
    """The SDK's parsed response without the keys that parsing adds."""
    if isinstance(value, dict):
        kept = {key: _without_parsed(member) for key, member in value.items()}
        return {key: member for key, member in kept.items() if key not in {"parsed", "parsed_arguments"}}
    return [_without_parsed(member) for member in value] if isinstance(value, list) else value
