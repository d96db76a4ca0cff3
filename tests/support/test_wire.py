"""The checks of the wire can fail: every kind of damage to a good stream is found."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from support.emission import RICH, SKELETONS, call, emit
from support.published import WAIVERS, Waiver, event_differences, response_differences
from support.wire import accumulate, check_stream, validate_event, validate_response

from mlxcel_trio.core.emitter import Completed, Failed, LengthStop
from mlxcel_trio.core.parsing.segments import (
    CallStart,
    ReasoningDelta,
    Segment,
    TextDelta,
)
from mlxcel_trio.protocol.responses import ResponseError, TokenLogprob, TopLogprob, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.published import Json

    Stream = list[Json]
    Damage = Callable[[Stream], object]

TOKEN = TokenLogprob("a", -0.5, (97,), (TopLogprob("a", -0.5, (97,)),))
OVERLOADED = Failed(ResponseError("server_overloaded", "The queue is full. Retry later."))
EMPTY_PART = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
STEPS: list[Segment] = [
    ReasoningDelta("Hm"),
    ReasoningDelta("m."),
    TextDelta("I look", (TOKEN,)),
    TextDelta(" it up."),
    *call("weather", '{"city":', '"Oslo"}'),
    *call("clock", "{}"),
]


def good_stream() -> Stream:
    return emit(STEPS, Completed(), compacted=True)[0]


def position(events: Stream, kind: str, nth: int = 0) -> int:
    """Where the nth event of a type stands; a negative nth counts from the end."""
    return [index for index, event in enumerate(events) if event["type"] == f"response.{kind}"][nth]


def find(events: Stream, kind: str, nth: int = 0) -> Json:
    return events[position(events, kind, nth)]


def renumber(events: Stream, first: int = 0) -> None:
    for number, event in enumerate(events, first):
        event["sequence_number"] = number


def drop(events: Stream, kind: str, nth: int = 0) -> None:
    """Take an event out and close the gap in the numbers, so that only the gap in meaning is left."""
    del events[position(events, kind, nth)]
    renumber(events)


def repeat(events: Stream, kind: str, nth: int = 0) -> None:
    index = position(events, kind, nth)
    events.insert(index, copy.deepcopy(events[index]))
    renumber(events)


def swap(events: Stream, kind: str, nth: int = 0) -> None:
    """Exchange an event with the one after it."""
    index = position(events, kind, nth)
    events[index : index + 2] = reversed(events[index : index + 2])
    renumber(events)


def move(events: Stream, start: int, stop: int) -> None:
    events.insert(stop, events.pop(start))
    renumber(events)


def final(events: Stream) -> Json:
    response: Json = events[-1]["response"]
    return response


def skip_a_number(events: Stream) -> None:
    for event in events[7:]:
        event["sequence_number"] += 1


def change_an_id_everywhere_but_once(events: Stream) -> None:
    find(events, "output_item.done", 2)["item"]["id"] = "msg_9"


def reuse_an_id(events: Stream) -> None:
    first, second = (find(events, "output_item.added", nth)["item"] for nth in (3, 4))
    second["id"] = first["id"]
    for event in events[position(events, "output_item.added", 4) :]:
        if event.get("item_id") == "fc_2":
            event["item_id"] = "fc_1"
    find(events, "output_item.done", -1)["item"]["id"] = "fc_1"
    final(events)["output"][-1]["id"] = "fc_1"


def zero_usage(events: Stream) -> None:
    final(events)["usage"] = copy.deepcopy(events[0]["response"]["usage"])


def miscount_usage(events: Stream) -> None:
    final(events)["usage"]["total_tokens"] += 1


def end_twice(events: Stream) -> None:
    events.append(copy.deepcopy(events[-1]))
    renumber(events)


def set_in(kind: str, nth: int, *path: str | int, to: object) -> Damage:
    """Damage: one value inside one event is another."""

    def damage(events: Stream) -> None:
        place: Any = find(events, kind, nth)
        *way, last = path
        for step in way:
            place = place[step]
        place[last] = to

    return damage


def without(kind: str, nth: int, *path: str | int) -> Damage:
    """Damage: one key inside one event is missing."""

    def damage(events: Stream) -> None:
        place: Any = find(events, kind, nth)
        *way, last = path
        for step in way:
            place = place[step]
        del place[last]

    return damage


DAMAGES: dict[str, Damage] = {
    "a number is skipped": skip_a_number,
    "the numbers start at one": lambda events: renumber(events, first=1),
    "created is missing": lambda events: drop(events, "created"),
    "created comes twice": lambda events: repeat(events, "created"),
    "in_progress is missing": lambda events: drop(events, "in_progress"),
    "in_progress changed": set_in("in_progress", 0, "response", "model", to="other"),
    "created has output": lambda events: events[0]["response"].update(output=final(events)["output"]),
    "created has usage": lambda events: events[0]["response"].update(usage=final(events)["usage"]),
    "the terminal event is missing": lambda events: events.pop(),
    "the terminal event comes twice": end_twice,
    "an event type is unknown": set_in("output_text.delta", 0, "type", to="response.output_text.more"),
    "an item's added is missing": lambda events: drop(events, "output_item.added", 1),
    "an item's added comes twice": lambda events: repeat(events, "output_item.added", 1),
    "an item's done is missing": lambda events: drop(events, "output_item.done", 2),
    "an item's done comes twice": lambda events: repeat(events, "output_item.done", 2),
    "a part's added is missing": lambda events: drop(events, "content_part.added"),
    "a part's added comes twice": lambda events: repeat(events, "content_part.added"),
    "a part's done is missing": lambda events: drop(events, "content_part.done"),
    "a text's done is missing": lambda events: drop(events, "output_text.done"),
    "a text's done comes before its last delta": lambda events: swap(events, "output_text.delta", 1),
    "a text's done comes after its part's": lambda events: swap(events, "output_text.done"),
    "a part is done after its item": lambda events: swap(events, "content_part.done"),
    "items overlap": lambda events: swap(events, "output_item.done", 1),
    "the last text delta is missing": lambda events: drop(events, "output_text.delta", -1),
    "the last reasoning delta is missing": lambda events: drop(events, "reasoning_text.delta", -1),
    "the last arguments delta is missing": lambda events: drop(events, "function_call_arguments.delta", -1),
    "a text delta comes twice": lambda events: repeat(events, "output_text.delta"),
    "two text deltas are exchanged": lambda events: swap(events, "output_text.delta"),
    "a delta is empty": set_in("output_text.delta", 0, "delta", to=""),
    "the text of done differs": set_in("output_text.done", 0, "text", to="I look it up"),
    "the text of the part differs": set_in("content_part.done", 1, "part", "text", to="I look it up"),
    "the text of the item differs": set_in("output_item.done", 2, "item", "content", 0, "text", to="I"),
    "the reasoning of done differs": set_in("reasoning_text.done", 0, "text", to="Hm"),
    "the arguments of done differ": set_in("function_call_arguments.done", 0, "arguments", to="{}"),
    "the arguments of the item differ": set_in("output_item.done", 3, "item", "arguments", to="{}"),
    "the final output differs": lambda events: final(events)["output"][2]["content"][0].update(text="I"),
    "the final output lacks an item": lambda events: final(events)["output"].pop(),
    "the final output has another order": lambda events: final(events)["output"].reverse(),
    "an added message has content": set_in("output_item.added", 2, "item", "content", to=[EMPTY_PART]),
    "an added item is completed": set_in("output_item.added", 2, "item", "status", to="completed"),
    "an added part has text": set_in("content_part.added", 1, "part", "text", to="I"),
    "a done item is in progress": set_in("output_item.done", 2, "item", "status", to="in_progress"),
    "logprobs of a delta are lost": set_in("output_text.delta", 0, "logprobs", to=[]),
    "logprobs of the text are lost": set_in("output_text.done", 0, "logprobs", to=[]),
    "logprobs of the part are lost": set_in("content_part.done", 1, "part", "logprobs", to=[]),
    "logprobs lack their bytes": without("output_text.done", 0, "logprobs", 0, "bytes"),
    "a delta has no logprobs key": without("output_text.delta", 0, "logprobs"),
    "an id changes": change_an_id_everywhere_but_once,
    "an id is used twice": reuse_an_id,
    "a call id changes": set_in("output_item.done", 3, "item", "call_id", to="call_9"),
    "a delta names another item": set_in("output_text.delta", 0, "item_id", to="rs_1"),
    "a delta has another output index": set_in("output_text.delta", 0, "output_index", to=0),
    "a delta has another content index": set_in("output_text.delta", 0, "content_index", to=1),
    "an output index is skipped": set_in("output_item.added", 1, "output_index", to=2),
    "done names another function": set_in("function_call_arguments.done", 0, "name", to="clock"),
    "done names no function": without("function_call_arguments.done", 0, "name"),
    "usage is zero though tokens were counted": zero_usage,
    "usage does not add up": miscount_usage,
    "the status contradicts the event": lambda events: final(events).update(status="incomplete"),
    "the event contradicts the status": set_in("completed", 0, "type", to="response.failed"),
    "completed_at is missing": lambda events: final(events).update(completed_at=None),
    "completed before it was created": lambda events: final(events).update(completed_at=1),
    "a completed response has an error": lambda events: final(events).update(
        error={"code": "server_error", "message": "m"}
    ),
    "the response id changes": lambda events: final(events).update(id="resp_9"),
    "an echoed field changes": lambda events: final(events).update(temperature=0.5),
    "a field of the response is missing": lambda events: final(events).pop("safety_identifier"),
    "a field of the response is unknown": lambda events: final(events).update(output_text="I"),
    "a field of an event is unknown": set_in("output_text.delta", 0, "snapshot", to="I"),
    "a field of an item is unknown": set_in("output_item.added", 2, "item", "phase", to=None),
    "a number is a string": set_in("output_text.delta", 0, "output_index", to="2"),
    "a compaction counts otherwise": lambda events: events[3].update(input_tokens_before=901),
    "a compaction completes before it starts": lambda events: move(events, 3, 2),
    "a compaction is announced inside the output": lambda events: move(events, 3, 6),
    "a compaction names another response": lambda events: events[2].update(response_id="resp_9"),
    "a compaction event has another field": lambda events: events[2].update(reason="r"),
}


def test_the_good_stream_is_accepted() -> None:
    events, response = emit(STEPS, Completed(), compacted=True)

    assert check_stream(events) == response


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_to_a_stream_is_found(damage: Damage) -> None:
    events = good_stream()
    damage(events)
    assert events != good_stream()

    with pytest.raises(AssertionError, match=r"^event \d+ of the stream|without a terminal"):
        check_stream(events)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("status", "completed"),
        ("incomplete_details", None),
        ("incomplete_details", {"reason": "content_filter"}),
        ("completed_at", 1_700_000_060),
    ],
)
def test_a_wrong_account_of_a_length_stop_is_found(key: str, value: object) -> None:
    response = emit([TextDelta("a"), CallStart("clock")], LengthStop())[1]
    validate_response(response)
    response[key] = value

    with pytest.raises(AssertionError, match=r"\S"):
        validate_response(response)


@pytest.mark.parametrize("statuses", [("completed", "completed"), ("incomplete", "incomplete")])
def test_a_length_stop_has_exactly_one_incomplete_item(statuses: tuple[str, str]) -> None:
    response = emit([ReasoningDelta("a"), TextDelta("b")], LengthStop())[1]
    for item, status in zip(response["output"], statuses, strict=True):
        item["status"] = status

    with pytest.raises(AssertionError, match="when incomplete"):
        validate_response(response)


def test_an_empty_message_beside_others_is_found() -> None:
    response = emit([ReasoningDelta("a"), TextDelta("b")], Completed())[1]
    response["output"][1]["content"][0]["text"] = ""

    with pytest.raises(AssertionError, match="empty item"):
        validate_response(response)


def test_arguments_of_a_completed_call_must_be_json() -> None:
    response = emit(call("clock", "{}"), Completed())[1]
    response["output"][0]["arguments"] = "{"

    with pytest.raises(AssertionError, match="not JSON"):
        validate_response(response)


def test_a_reasoning_item_needs_reasoning_tokens() -> None:
    response = emit([ReasoningDelta("a")], Completed(), usage=Usage(1, output_tokens=1, total_tokens=2))[1]

    with pytest.raises(AssertionError, match="reasoning token"):
        validate_response(response)


def test_a_job_shows_neither_output_nor_usage_before_its_end() -> None:
    response = emit([TextDelta("a")], Completed(), skeleton=SKELETONS[2])[1]
    queued = {**response, "status": "queued", "completed_at": None, "output": []}

    with pytest.raises(AssertionError, match="usage"):
        validate_response(queued)
    queued["usage"] = good_stream()[0]["response"]["usage"]
    validate_response(queued)


def test_the_message_names_the_event() -> None:
    events = good_stream()
    events[9]["sequence_number"] = 11

    with pytest.raises(AssertionError, match="event 9 of the stream: sequence_number 11, expected 9"):
        check_stream(events)


def test_accumulate_gives_the_start_of_an_answer() -> None:
    events = good_stream()
    start = events[: position(events, "output_text.delta") + 1]

    assert accumulate(start)["output"][-1]["content"][0]["text"] == "I look"


@pytest.mark.parametrize("kind", ["output_text.delta", "function_call_arguments.delta"])
def test_accumulate_adds_up_the_deltas(kind: str) -> None:
    events = good_stream()
    assert accumulate(events) == final(events)
    drop(events, kind)

    assert accumulate(events) != final(events)


def test_accumulate_refuses_a_stream_that_the_sdk_refuses() -> None:
    with pytest.raises(RuntimeError, match=r"response\.created"):
        accumulate(good_stream()[1:])


@pytest.mark.parametrize("waiver", WAIVERS, ids=[f"{it.model}-{it.path}-{it.kind}" for it in WAIVERS])
def test_every_waiver_is_needed(waiver: Waiver) -> None:
    others = [other for other in WAIVERS if other is not waiver]
    streams = [emit(STEPS, Completed(), skeleton=RICH)[0], emit([], OVERLOADED)[0]]
    events = [event for stream in streams for event in stream]
    responses = [event["response"] for event in events if "response" in event]

    found = [difference for event in events for difference in event_differences(event, others)]
    found += [difference for response in responses for difference in response_differences(response, others)]

    assert found
    assert all(waiver.covers(difference) for difference in found)


def test_validate_event_looks_at_one_event() -> None:
    validate_event(good_stream()[7])
    with pytest.raises(AssertionError, match="not an event type"):
        validate_event({"type": "response.queued", "sequence_number": 0})
