"""Faults of the events of a stream and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.faults.fault import Faults
from support.wrong_app import COMMENT, Frame

if TYPE_CHECKING:
    from support.published import Json
    from support.wrong_app import Answer

FAULTS = Faults()


@FAULTS.says("B001")
def a_number_is_skipped(answer: Answer) -> None:
    for event in answer.events[3:]:
        event["sequence_number"] += 1


@FAULTS.says("B001")
def numbers_are_missing(answer: Answer) -> None:
    for event in answer.events:
        del event["sequence_number"]


@FAULTS.says("B002")
def the_last_event_has_number_1(answer: Answer) -> None:
    for event in answer.events[-1:]:
        event["sequence_number"] = 1


@FAULTS.says("B004")
def events_do_not_say_where_they_belong(answer: Answer) -> None:
    for event in answer.events:
        event.pop("output_index", None)
        event.pop("content_index", None)


@FAULTS.says("B004")
def all_items_have_the_same_place(answer: Answer) -> None:
    for event in answer.events:
        if "output_index" in event:
            event["output_index"] = 0


@FAULTS.says("B004", "B013", "B017")
def an_item_id_changes(answer: Answer) -> None:
    for event in answer.events_of("output_text.done", "reasoning_text.done", "content_part.done"):
        event["item_id"] += "0"


@FAULTS.says("B005", "B011")
def the_text_is_never_done(answer: Answer) -> None:
    answer.drop("output_text.done")


@FAULTS.says("B005", "B011", "B145", "B160")
def the_last_delta_is_lost(answer: Answer) -> None:
    last = answer.events_of("output_text.delta")[-1:]
    answer.keep([frame for frame in answer.frames if frame.event not in last])


@FAULTS.says("B008", "B011")
def items_are_never_added(answer: Answer) -> None:
    answer.drop("output_item.added")


@FAULTS.says("B008")
def the_terminal_event_is_bare(answer: Answer) -> None:
    for event in answer.events[-1:]:
        event["response"] = {"status": event["response"]["status"]}


@FAULTS.says("B011", "B022")
def a_response_is_never_in_progress(answer: Answer) -> None:
    answer.drop("in_progress")


@FAULTS.says("B012", "B026")
def logprobs_are_missing(answer: Answer) -> None:
    for holder in (*answer.parts(), *answer.events):
        holder.pop("logprobs", None)


@FAULTS.says("B013", "B134")
def reasoning_deltas_stand_alone(answer: Answer) -> None:
    answer.keep([frame for frame in answer.frames if not _encloses_reasoning(frame.event)])


def _encloses_reasoning(event: Json) -> bool:
    kinds = [event[key]["type"] for key in ("item", "part") if key in event]
    return kinds in (["reasoning"], ["reasoning_text"])


@FAULTS.says("B017")
def ids_are_empty(answer: Answer) -> None:
    for item in answer.items():
        item["id"] = ""
    for event in answer.events:
        if "item_id" in event:
            event["item_id"] = ""


@FAULTS.says("B017")
def items_are_null(answer: Answer) -> None:
    for event in answer.events_of("output_item.added", "output_item.done"):
        event["item"] = None


@FAULTS.says("B020", "B021", "B024", "B189")
def the_terminal_event_is_missing(answer: Answer) -> None:
    answer.frames = answer.frames[:-1]


@FAULTS.says("B020", "B024")
def a_failure_is_called_error(answer: Answer) -> None:
    answer.frames = [
        Frame("error" if frame.name == "response.failed" else frame.name, frame.event)
        for frame in answer.frames
    ]


@FAULTS.says("B178")
def done_is_missing(answer: Answer) -> None:
    answer.done = False


@FAULTS.says("B171")
def silence_is_filled_with_comments(answer: Answer) -> None:
    answer.frames = [
        Frame(COMMENT if index > 1 and frame.name == "response.in_progress" else frame.name, frame.event)
        for index, frame in enumerate(answer.frames)
    ]
