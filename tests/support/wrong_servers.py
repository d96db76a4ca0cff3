"""Servers that are wrong on purpose: what the checks of the cases have to notice.

``ALWAYS`` answer each request alike and are well-formed, so that only a check itself can tell. Each of
``FAULTS`` is our server but for one thing, which the cases it names report.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from support.emission import emit
from support.wrong_app import COMMENT, Answer, Frame, WrongServer

from mlxcel_trio.core.emitter import Completed
from mlxcel_trio.core.parsing.segments import TextDelta

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.published import Json

JSON = {"content-type": "application/json"}
STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def _empty_message(request: Json) -> Answer:
    events, response = emit([], Completed())
    if not request.get("stream"):
        return Answer(200, JSON, json.dumps(response).encode())
    answer = Answer(200, STREAM, b"data: [DONE]\n\n")
    answer.frames = [Frame(event["type"], event) for event in events]
    return answer


def _refusal(_request: Json) -> Answer:
    error = {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}
    return Answer(400, JSON, json.dumps({"error": error}).encode())


ALWAYS = (
    WrongServer("200 with an empty message", answer=_empty_message),
    WrongServer("400", answer=_refusal),
)
FAULTS: list[WrongServer] = []


def says(*cases: str) -> Callable[[Callable[[Answer], None]], Callable[[Answer], None]]:
    """Adds a server whose answers go through the function; ``cases`` report what that makes of them."""

    def add(change: Callable[[Answer], None]) -> Callable[[Answer], None]:
        FAULTS.append(WrongServer(change.__name__, cases, say=change))
        return change

    return add


def hears(*cases: str) -> Callable[[Callable[[Json], None]], Callable[[Json], None]]:
    """Adds a server that gets every request body through the function."""

    def add(change: Callable[[Json], None]) -> Callable[[Json], None]:
        FAULTS.append(WrongServer(change.__name__, cases, hear=change))
        return change

    return add


# Events


@says("B001")
def a_number_is_skipped(answer: Answer) -> None:
    for event in answer.events[3:]:
        event["sequence_number"] += 1


@says("B001")
def numbers_are_missing(answer: Answer) -> None:
    for event in answer.events:
        del event["sequence_number"]


@says("B002")
def the_last_event_has_number_1(answer: Answer) -> None:
    for event in answer.events[-1:]:
        event["sequence_number"] = 1


@says("B004")
def events_do_not_say_where_they_belong(answer: Answer) -> None:
    for event in answer.events:
        event.pop("output_index", None)
        event.pop("content_index", None)


@says("B004")
def all_items_have_the_same_place(answer: Answer) -> None:
    for event in answer.events:
        if "output_index" in event:
            event["output_index"] = 0


@says("B004", "B013", "B017")
def an_item_id_changes(answer: Answer) -> None:
    for event in answer.events_of("output_text.done", "reasoning_text.done", "content_part.done"):
        event["item_id"] += "0"


@says("B005", "B011")
def the_text_is_never_done(answer: Answer) -> None:
    answer.drop("output_text.done")


@says("B005", "B011", "B145", "B160")
def the_last_delta_is_lost(answer: Answer) -> None:
    last = answer.events_of("output_text.delta")[-1:]
    answer.keep([frame for frame in answer.frames if frame.event not in last])


@says("B008", "B011")
def items_are_never_added(answer: Answer) -> None:
    answer.drop("output_item.added")


@says("B008")
def the_terminal_event_is_bare(answer: Answer) -> None:
    for event in answer.events[-1:]:
        event["response"] = {"status": event["response"]["status"]}


@says("B011", "B022")
def a_response_is_never_in_progress(answer: Answer) -> None:
    answer.drop("in_progress")


@says("B012", "B026")
def logprobs_are_missing(answer: Answer) -> None:
    for holder in (*answer.parts(), *answer.events):
        holder.pop("logprobs", None)


@says("B013", "B134")
def reasoning_deltas_stand_alone(answer: Answer) -> None:
    answer.keep([frame for frame in answer.frames if not _encloses_reasoning(frame.event)])


def _encloses_reasoning(event: Json) -> bool:
    kinds = [event[key]["type"] for key in ("item", "part") if key in event]
    return kinds in (["reasoning"], ["reasoning_text"])


@says("B017")
def ids_are_empty(answer: Answer) -> None:
    for item in answer.items():
        item["id"] = ""
    for event in answer.events:
        if "item_id" in event:
            event["item_id"] = ""


@says("B017")
def items_are_null(answer: Answer) -> None:
    for event in answer.events_of("output_item.added", "output_item.done"):
        event["item"] = None


@says("B020", "B021", "B024", "B189")
def the_terminal_event_is_missing(answer: Answer) -> None:
    answer.frames = answer.frames[:-1]


@says("B020", "B024")
def a_failure_is_called_error(answer: Answer) -> None:
    answer.frames = [
        Frame("error" if frame.name == "response.failed" else frame.name, frame.event)
        for frame in answer.frames
    ]


@says("B178")
def done_is_missing(answer: Answer) -> None:
    answer.done = False


@says("B171")
def silence_is_filled_with_comments(answer: Answer) -> None:
    answer.frames = [
        Frame(COMMENT if index > 1 and frame.name == "response.in_progress" else frame.name, frame.event)
        for index, frame in enumerate(answer.frames)
    ]


# The response object


@says("B026")
def annotations_are_missing(answer: Answer) -> None:
    for part in answer.parts():
        part.pop("annotations", None)


@says("B027")
def fields_are_null(answer: Answer) -> None:
    for response in answer.responses():
        response.update(dict.fromkeys(("tools", "tool_choice", "truncation", "temperature", "text")))


@says("B030")
def usage_has_no_details(answer: Answer) -> None:
    for response in answer.responses():
        del response["usage"]["input_tokens_details"], response["usage"]["output_tokens_details"]


@says("B022", "B030", "B151", "B156", "B157", "B160", "B171")
def usage_is_zero(answer: Answer) -> None:
    for response in answer.responses():
        response["usage"] = _zeroed(response["usage"])


def _zeroed(usage: Json) -> Json:
    return {key: _zeroed(value) if isinstance(value, dict) else 0 for key, value in usage.items()}


@says("B032")
def store_is_said_to_be_on(answer: Answer) -> None:
    for response in answer.responses():
        response["store"] = True


@says("B139")
def effort_is_not_echoed(answer: Answer) -> None:
    for response in answer.responses():
        response["reasoning"] = None


@says("B164")
def metadata_is_not_echoed(answer: Answer) -> None:
    for response in answer.responses():
        response["metadata"] = {}


@says("B166")
def alternatives_are_missing(answer: Answer) -> None:
    for part in answer.parts():
        for entry in part.get("logprobs", ()):
            entry["top_logprobs"] = []


@says("B151", "B156", "B157")
def a_length_stop_is_completed(answer: Answer) -> None:
    for response in answer.responses():
        if response["status"] == "incomplete":
            response.update(status="completed", incomplete_details=None, completed_at=response["created_at"])
            for item in response["output"]:
                item["status"] = "completed"


# What the model wrote


@says("B135", "B137", "B138")
def reasoning_is_text(answer: Answer) -> None:
    for response in answer.responses():
        shown = "".join(_shown(item) for item in response["output"])
        response["output"] = _message(shown) if shown else []
    answer.keep([frame for frame in answer.frames if "item" not in frame.event])


def _shown(item: Json) -> str:
    text = "".join(part["text"] for part in item["content"])
    return f"<think>{text}</think>" if item["type"] == "reasoning" else text


def _message(text: str) -> list[Json]:
    _, response = emit([TextDelta(text)], Completed())
    output: list[Json] = response["output"]
    return output


@says("B145", "B146", "B150")
def half_a_character_is_shown(answer: Answer) -> None:
    answer.append("\N{REPLACEMENT CHARACTER}")


@says("B160")
def the_stop_string_is_shown(answer: Answer) -> None:
    answer.append("mast hull")


@says("B161")
def the_end_token_is_shown(answer: Answer) -> None:
    answer.append("<|im_end|>")


@says("B185", "B189", "B190")
def a_piece_of_another_answer_comes_along(answer: Answer) -> None:
    answer.append("N9 ")


@says("B008", "B116", "B142")
def every_answer_is_empty(answer: Answer) -> None:
    for part in answer.parts():
        part["text"] = ""
    answer.drop("output_text.delta")


# Errors


@says(
    "B048", "B051", "B054", "B055", "B065", "B090", "B119", "B120", "B122", "B123", "B128",
    "B152", "B154", "B157", "B164", "B166", "B168", "B181", "B182",
)  # fmt: skip
def errors_name_no_field(answer: Answer) -> None:
    if answer.error is not None:
        answer.error["param"] = None


@says(
    "B048", "B051", "B054", "B055", "B065", "B090", "B119", "B120", "B149", "B154",
    "B157", "B166", "B181", "B182",
)  # fmt: skip
def errors_say_nothing(answer: Answer) -> None:
    if answer.error is not None:
        answer.error["message"] = "Bad request."


@says("B022", "B155", "B177", "B181", "B182", "B184", "B190")
def errors_have_no_code(answer: Answer) -> None:
    if answer.error is not None:
        answer.error["code"] = None


@says("B065", "B120", "B122", "B123", "B149", "B154", "B168", "B180")
def refusals_are_500(answer: Answer) -> None:
    if answer.error is not None:
        answer.status = 500


@says("B022", "B184", "B190", "B181")
def failures_are_200(answer: Answer) -> None:
    if answer.error is not None:
        answer.body = emit([TextDelta(answer.error["message"])], Completed())[1]
        answer.status = 200


@says("B177")
def a_wrong_key_is_told_in_plain_text(answer: Answer) -> None:
    if answer.status == 401:
        answer.headers["content-type"] = "text/plain"


@says("B177")
def a_wrong_key_is_good(answer: Answer) -> None:
    if answer.status == 401:
        answer.status = 200
        answer.body = emit([TextDelta("Hello there.")], Completed())[1]


@says("B175")
def a_preflight_needs_a_key(answer: Answer) -> None:
    if answer.status == 204:
        answer.status = 401
        answer.headers |= JSON
        answer.body = _refusal({}).body


@says("B173")
def models_are_listed_under_another_key(answer: Answer) -> None:
    if "data" in (answer.body or {}):
        answer.body["models"] = answer.body.pop("data")


# Requests


@hears("B090", "B116", "B121", "B127", "B140", "B142", "B119")
def only_the_last_item_is_heard(request: Json) -> None:
    if isinstance(request.get("input"), list):
        request["input"] = request["input"][-1:]


@hears("B130")
def instructions_are_not_heard(request: Json) -> None:
    request.pop("instructions", None)


@hears("B132", "B130")
def every_role_is_the_user(request: Json) -> None:
    for item in request["input"] if isinstance(request.get("input"), list) else ():
        if "role" in item:
            item["role"] = "user"


@hears("B117", "B116", "B127")
def dialogue_is_heard_as_json(request: Json) -> None:
    request["input"] = json.dumps(request.get("input"))


@hears("B139")
def template_arguments_are_not_heard(request: Json) -> None:
    request.pop("chat_template_kwargs", None)


@hears("B151", "B157")
def limits_are_not_heard(request: Json) -> None:
    request.pop("max_output_tokens", None)


@hears("B160")
def stops_are_not_heard(request: Json) -> None:
    request.pop("stop", None)


@hears("B182", "B181", "B154", "B055", "B048", "B054", "B065", "B168", "B166")
def what_is_not_built_is_ignored(request: Json) -> None:
    for key in ("truncation", "background", "tools", "instructions", "text", "top_logprobs"):
        request.pop(key, None)
    if isinstance(request.get("input"), list):
        for item in request["input"]:
            if isinstance(item.get("content"), list):
                item["content"] = [part for part in item["content"] if part["type"] == "input_text"]


@hears("B122", "B123", "B128")
def mistakes_in_the_input_are_mended(request: Json) -> None:
    request["input"] = "hi"


@hears("B133")
def what_looks_like_a_marker_is_cut_out(request: Json) -> None:
    request["input"] = re.sub(r"<\|\w+\|>", "", request["input"])


# Clients that leave

FAULTS.append(
    WrongServer(
        "nobody_notices_that_a_client_left",
        ("B105", "B109", "B110", "B113"),
        deaf=True,
        context_window=200,  # endless answers end there, a while after the client has left
    )
)
