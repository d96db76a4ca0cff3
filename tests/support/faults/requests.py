"""Faults in how a request is taken."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from support.faults.fault import Faults
from support.wrong_app import WrongServer

if TYPE_CHECKING:
    from support.published import Json

FAULTS = Faults()


@FAULTS.hears("B090", "B116", "B118", "B119", "B121", "B127", "B140", "B142")
def only_the_last_item_is_heard(request: Json) -> None:
    if isinstance(request.get("input"), list):
        request["input"] = request["input"][-1:]


@FAULTS.hears("B118")
def the_first_part_is_enough(request: Json) -> None:
    for item in request["input"] if isinstance(request.get("input"), list) else ():
        if isinstance(item.get("output"), list):
            item["output"] = item["output"][:1]


@FAULTS.hears("B049", "B077", "B078", "B130")
def instructions_are_not_heard(request: Json) -> None:
    request.pop("instructions", None)


@FAULTS.hears("B130", "B132")
def every_role_is_the_user(request: Json) -> None:
    for item in request["input"] if isinstance(request.get("input"), list) else ():
        if "role" in item:
            item["role"] = "user"


@FAULTS.hears("B116", "B117", "B127")
def dialogue_is_heard_as_json(request: Json) -> None:
    request["input"] = json.dumps(request.get("input"))


@FAULTS.hears("B139")
def template_arguments_are_not_heard(request: Json) -> None:
    request.pop("chat_template_kwargs", None)


@FAULTS.hears("B151", "B157")
def limits_are_not_heard(request: Json) -> None:
    request.pop("max_output_tokens", None)


@FAULTS.hears("B160")
def stops_are_not_heard(request: Json) -> None:
    request.pop("stop", None)


@FAULTS.hears("B048", "B054", "B055", "B065", "B154", "B166", "B168", "B181", "B182")
def what_is_not_built_is_ignored(request: Json) -> None:
    for key in ("truncation", "background", "tools", "instructions", "text", "top_logprobs"):
        request.pop(key, None)
    if isinstance(request.get("input"), list):
        for item in request["input"]:
            if isinstance(item.get("content"), list):
                item["content"] = [part for part in item["content"] if part["type"] == "input_text"]


@FAULTS.hears("B122", "B123", "B128")
def mistakes_in_the_input_are_mended(request: Json) -> None:
    request["input"] = "hi"


@FAULTS.hears("B133")
def what_looks_like_a_marker_is_cut_out(request: Json) -> None:
    request["input"] = re.sub(r"<\|\w+\|>", "", request["input"])


FAULTS.append(
    WrongServer(
        "nobody_notices_that_a_client_left",
        ("B105", "B109", "B110", "B113"),
        deaf=True,
        context_window=150,  # endless answers end there, a while after the client has left
    )
)
