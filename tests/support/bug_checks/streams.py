"""Cases about the events of a stream and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.bug_checks.check import Checks
from support.objects import RESPONSE_KEYS
from support.served import text_of

if TYPE_CHECKING:
    from support.case_runner import CaseRun
    from support.published import Json

CHECKS = Checks()

THINKS = {"emit": ["<think>", "hm", "</think>", "Hello"]}
FAILS = {"when": "fail", "emit": ["a", "b"], "then": "raise"}
PLAIN = {"emit": ["Hel", "lo", " there."]}

ANSWER_TYPES = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def numbers(events: list[Json]) -> list[object]:
    return [event["sequence_number"] for event in events]


@CHECKS("B001", rows=(FAILS, PLAIN))
async def every_event_has_the_next_number(run: CaseRun) -> None:
    failed = await run.again(input="fail")
    assert failed.types[-1] == "response.failed"
    for events in (run.only.events, failed.events):
        assert len(events) > 5
        assert numbers(events) == list(range(len(events)))
        assert {type(number) for number in numbers(events)} == {int}


@CHECKS("B002")
async def the_failure_has_the_next_number(run: CaseRun) -> None:
    events = run.only.events
    assert [event["delta"] for event in run.only.of_type("output_text.delta")] == ["1 ", "2 ", "3 "]
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["sequence_number"] == events[-2]["sequence_number"] + 1 == len(events) - 1


@CHECKS("B004")
async def every_event_says_where_it_belongs(run: CaseRun) -> None:
    items = [
        (event["output_index"], event["item"]["type"]) for event in run.only.of_type("output_item.added")
    ]
    assert items == [(0, "reasoning"), (1, "message")]
    places = {"reasoning_text": 0, "output_text": 1}
    for event in run.only.events:
        kind = event["type"].removeprefix("response.").partition(".")[0]
        if kind in ("content_part", *places):
            assert event["content_index"] == 0
            assert event["output_index"] == places[event["part"]["type"] if "part" in event else kind]


@CHECKS("B005")
async def the_text_is_done_once_before_its_part(run: CaseRun) -> None:
    (done,) = run.only.of_type("output_text.done")
    assert done["text"] == "".join(event["delta"] for event in run.only.of_type("output_text.delta"))
    assert done["text"] == "Hello there."
    after = run.only.events[done["sequence_number"] + 1]
    assert (after["type"], after["part"]["text"]) == ("response.content_part.done", done["text"])


@CHECKS("B008")
async def the_terminal_event_has_the_whole_response(run: CaseRun) -> None:
    response = run.only.response
    assert response.keys() == RESPONSE_KEYS
    assert response["id"] == run.only.events[0]["response"]["id"]
    assert response["model"] == "scripted"
    assert response["output"] == [event["item"] for event in run.only.of_type("output_item.done")]
    assert len(run.only.of_type("output_item.added")) == len(response["output"]) == 1
    assert (await run.send("GET", f"/v1/responses/{response['id']}")).response == response


@CHECKS("B011")
async def the_nine_steps_come_in_order(run: CaseRun) -> None:
    steps = [
        kind
        for position, kind in enumerate(run.only.types)
        if not position or kind != run.only.types[position - 1]
    ]
    assert steps == ANSWER_TYPES
    assert run.only.types.count("response.output_text.delta") == 3


@CHECKS("B012")
async def text_events_have_empty_logprobs(run: CaseRun) -> None:
    events = [*run.only.of_type("output_text.delta"), *run.only.of_type("output_text.done")]
    assert len(events) == 4
    assert all(event["logprobs"] == [] for event in events)


@CHECKS("B013")
async def reasoning_is_an_item_of_its_own(run: CaseRun) -> None:
    kinds = [kind.removeprefix("response.") for kind in run.only.types]
    assert kinds[2:8] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    added, part, delta, done, _, _ = run.only.events[2:8]
    assert added["item"]["type"] == "reasoning"
    assert added["item"]["id"].startswith("rs_")
    assert part["part"]["type"] == "reasoning_text"
    assert {event["item_id"] for event in (part, delta, done)} == {added["item"]["id"]}
    assert done["text"] == delta["delta"] == "two and two"
    assert run.only.events[8]["item"]["type"] == "message"
    assert text_of(run.only.response) == "4"


@CHECKS("B017", rows=(THINKS,))
async def ids_are_there_and_nothing_is_null(run: CaseRun) -> None:
    named = 0
    for event in run.only.events:
        ids = [event["item_id"]] if "item_id" in event else []
        ids += [event["item"]["id"]] if "item" in event else []
        assert all(isinstance(value, str) and value for value in ids)
        assert all(event[key] is not None for key in ("item", "part") if key in event)
        named += bool(ids)
    assert named == len(run.only.events) - 3, "all but created, in_progress and completed"
    assert text_of(run.only.response) == "Hello"


@CHECKS("B020")
async def an_engine_failure_is_response_failed(run: CaseRun) -> None:
    response = run.only.response
    assert run.only.types[-1] == "response.failed"
    assert response["status"] == "failed"
    assert response["error"].keys() == {"code", "message"}
    assert response["error"]["code"] == "server_error"
    assert response["error"]["message"]
    assert text_of(response) == "a"
    assert (await run.send("GET", f"/v1/responses/{response['id']}")).response == response


@CHECKS("B021")
async def a_late_error_is_no_second_answer(run: CaseRun) -> None:
    assert run.only.types[-1] == "response.failed"
    async with run.served.connect() as client:
        step = run.only.step
        headers = {"Connection": "close"}
        await client.send(step.method, step.path, headers=headers, body=step.content())
        received = await client.rest()
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@CHECKS("B022")
async def a_failure_is_never_a_200(run: CaseRun) -> None:
    error = run.only.error(500)
    assert (error["type"], error["code"]) == ("server_error", "server_error")
    streamed = await run.again(stream=True)
    assert streamed.types == ["response.created", "response.in_progress", "response.failed"]
    assert streamed.response["error"]["code"] == "server_error"
    assert streamed.response["usage"]["input_tokens"] > 0


@CHECKS("B024")
async def a_failure_has_the_name_of_its_type(run: CaseRun) -> None:
    # That every frame's event is its data's type is checked wherever a stream is read.
    assert run.only.types == ["response.created", "response.in_progress", "response.failed"]
    assert "error" not in run.only.types
