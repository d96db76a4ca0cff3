"""Faults of the response object and of the text in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.emission import emit
from support.faults.fault import Faults

from mlxcel_trio.core.emitter import Completed
from mlxcel_trio.core.parsing.segments import TextDelta

if TYPE_CHECKING:
    from support.published import Json
    from support.wrong_app import Answer

FAULTS = Faults()


@FAULTS.says("B026")
def annotations_are_missing(answer: Answer) -> None:
    for part in answer.parts():
        part.pop("annotations", None)


@FAULTS.says("B027")
def fields_are_null(answer: Answer) -> None:
    for response in answer.responses():
        response.update(dict.fromkeys(("tools", "tool_choice", "truncation", "temperature", "text")))


@FAULTS.says("B030")
def usage_has_no_details(answer: Answer) -> None:
    for response in answer.responses():
        del response["usage"]["input_tokens_details"], response["usage"]["output_tokens_details"]


@FAULTS.says("B022", "B030", "B151", "B156", "B157", "B160")
def usage_is_zero(answer: Answer) -> None:
    for response in answer.responses():
        response["usage"] = _zeroed(response["usage"])


def _zeroed(usage: Json) -> Json:
    return {key: _zeroed(value) if isinstance(value, dict) else 0 for key, value in usage.items()}


@FAULTS.says("B032")
def store_is_said_to_be_on(answer: Answer) -> None:
    for response in answer.responses():
        response["store"] = True


@FAULTS.says("B139")
def effort_is_not_echoed(answer: Answer) -> None:
    for response in answer.responses():
        response["reasoning"] = None


@FAULTS.says("B164")
def metadata_is_not_echoed(answer: Answer) -> None:
    for response in answer.responses():
        response["metadata"] = {}


@FAULTS.says("B166")
def alternatives_are_missing(answer: Answer) -> None:
    for part in answer.parts():
        for entry in part.get("logprobs", ()):
            entry["top_logprobs"] = []


@FAULTS.says("B151", "B156", "B157")
def a_length_stop_is_completed(answer: Answer) -> None:
    for response in answer.responses():
        if response["status"] == "incomplete":
            response.update(status="completed", incomplete_details=None, completed_at=response["created_at"])
            for item in response["output"]:
                item["status"] = "completed"


# What the model wrote


@FAULTS.says("B135", "B137", "B138")
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


@FAULTS.says("B145", "B146", "B150")
def half_a_character_is_shown(answer: Answer) -> None:
    answer.append("\N{REPLACEMENT CHARACTER}")


@FAULTS.says("B160")
def the_stop_string_is_shown(answer: Answer) -> None:
    answer.append("mast hull")


@FAULTS.says("B161")
def the_end_token_is_shown(answer: Answer) -> None:
    answer.append("<|im_end|>")


@FAULTS.says("B185", "B189", "B190")
def a_piece_of_another_answer_comes_along(answer: Answer) -> None:
    answer.append("N9 ")


@FAULTS.says("B008", "B116", "B142")
def every_answer_is_empty(answer: Answer) -> None:
    for part in answer.parts():
        part["text"] = ""
    answer.drop("output_text.delta")
