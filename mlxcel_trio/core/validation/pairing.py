"""Calls and their outputs belong together by ``call_id``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.core.validation.refusals import invalid, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_trio.protocol.items import InputItem


def check_tool_pairing(
    items: Sequence[InputItem], *, history: Sequence[InputItem] = (), path: str = "input"
) -> None:
    """Check that every output follows its call and that no ``call_id`` serves twice.

    ``items`` is the request's own input, validated one by one, from the field at ``path``; ``history`` is
    what comes before it and is trusted. A call without an output is fine.

    :raises InvalidRequestError: naming the ``call_id`` inside that field.
    """
    called = {item.call_id for item in history if item.type == "function_call"}
    answered = {item.call_id for item in history if item.type == "function_call_output"}
    for index, item in enumerate(items):
        place = f"{path}[{index}].call_id"
        call_id = shown(item.call_id or "")
        if item.type == "function_call":
            if item.call_id in called:
                raise invalid(place, f"another call has the id {call_id} already. Give each call its own.")
            called.add(item.call_id)
        elif item.type == "function_call_output":
            if item.call_id not in called:
                raise invalid(
                    place, f"no function call with the id {call_id} comes before. Send the call too."
                )
            if item.call_id in answered:
                raise invalid(place, f"the call {call_id} has an output already. Send one output per call.")
            answered.add(item.call_id)
