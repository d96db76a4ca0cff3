"""Servers that are wrong on purpose: what the checks of the cases have to notice.

``ALWAYS`` answer each request alike and are well-formed, so that only a check itself can tell. Each of
``FAULTS`` is our server but for one thing, which the cases it names report.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.emission import emit
from support.faults import errors, events, requests, responses, state
from support.wrong_app import Answer, Frame, WrongServer

from mlxcel_trio.core.emitter import Completed

if TYPE_CHECKING:
    from support.published import Json

JSON = {"content-type": "application/json"}
STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def _empty_message(request: Json) -> Answer:
    stream, response = emit([], Completed())
    if not request.get("stream"):
        return Answer(200, JSON, json.dumps(response).encode())
    answer = Answer(200, STREAM, b"data: [DONE]\n\n")
    answer.frames = [Frame(event["type"], event) for event in stream]
    return answer


def _refusal(_request: Json) -> Answer:
    error = {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}
    return Answer(400, JSON, json.dumps({"error": error}).encode())


ALWAYS = (
    WrongServer("200 with an empty message", answer=_empty_message),
    WrongServer("400", answer=_refusal),
)
FAULTS: tuple[WrongServer, ...] = (
    *events.FAULTS,
    *responses.FAULTS,
    *errors.FAULTS,
    *requests.FAULTS,
    *state.FAULTS,
)
