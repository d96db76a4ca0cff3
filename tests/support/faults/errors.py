"""Faults of errors, and of the paths beside those that create."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.emission import emit
from support.faults.fault import Faults

from mlxcel_trio.core.emitter import Completed
from mlxcel_trio.core.parsing.segments import TextDelta

if TYPE_CHECKING:
    from support.wrong_app import Answer

FAULTS = Faults()


@FAULTS.says(
    "B048", "B051", "B054", "B055", "B065", "B090", "B096", "B104", "B119", "B120", "B122", "B123", "B128",
    "B152", "B154", "B157", "B164", "B166", "B167", "B168", "B169", "B181", "B182",
)  # fmt: skip
def errors_name_no_field(answer: Answer) -> None:
    if answer.error is not None:
        answer.error["param"] = None


@FAULTS.says(
    "B048", "B051", "B054", "B055", "B065", "B089", "B090", "B096", "B119", "B120", "B149", "B154",
    "B157", "B166", "B167", "B169", "B181", "B182",
)  # fmt: skip
def errors_say_nothing(answer: Answer) -> None:
    if answer.error is not None:
        answer.error["message"] = "Bad request."


@FAULTS.says(
    "B022", "B089", "B092", "B093", "B095", "B102", "B106", "B119", "B155", "B167", "B177", "B181", "B182",
    "B184", "B190",
)  # fmt: skip
def errors_have_no_code(answer: Answer) -> None:
    if answer.error is not None:
        answer.error["code"] = None


@FAULTS.says("B065", "B120", "B122", "B123", "B149", "B154", "B168", "B180")
def refusals_are_500(answer: Answer) -> None:
    if answer.error is not None:
        answer.status = 500


@FAULTS.says("B022", "B181", "B184", "B190")
def failures_are_200(answer: Answer) -> None:
    if answer.error is not None:
        answer.body = emit([TextDelta(answer.error["message"])], Completed())[1]
        answer.status = 200


@FAULTS.says("B177")
def a_wrong_key_is_told_in_plain_text(answer: Answer) -> None:
    if answer.status == 401:
        answer.headers["content-type"] = "text/plain"


@FAULTS.says("B177")
def a_wrong_key_is_good(answer: Answer) -> None:
    if answer.status == 401:
        answer.status = 200
        answer.body = emit([TextDelta("Hello there.")], Completed())[1]


@FAULTS.says("B175")
def a_preflight_needs_a_key(answer: Answer) -> None:
    if answer.status == 204:
        answer.status = 401
        answer.headers["content-type"] = "application/json"
        error = {"message": "No key.", "type": "invalid_request_error", "param": None, "code": None}
        answer.body = {"error": error}


@FAULTS.says("B173")
def models_are_listed_under_another_key(answer: Answer) -> None:
    if "data" in (answer.body or {}):
        answer.body["models"] = answer.body.pop("data")
