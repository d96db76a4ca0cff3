"""Features with a place in the API that are not built yet: asking for one is refused, never ignored.

The refusal comes last, so a request with a mistake in such a field hears about the mistake. Whoever builds a
feature deletes its row.
"""

from __future__ import annotations

from collections.abc import Callable

from mlxcel_trio.core.plan import CreatePlan
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.requests import CreateResponse
from mlxcel_trio.protocol.tools import PlainTextFormat

_Finder = Callable[[CreateResponse, CreatePlan], str | None]
"""Gives the path of the field that asks for a feature, ``None`` when no field does."""


def refuse_unbuilt(request: CreateResponse, plan: CreatePlan) -> None:
    """Refuse the first feature in the table that the request asks for.

    :raises InvalidRequestError: naming the field.
    """
    for find in _NOT_YET:
        path = find(request, plan)
        if path is not None:
            raise InvalidRequestError(
                f"'{path}' is not supported by this version yet. Send the request without it.", param=path
            )


def _field(path: str, asks: Callable[[CreateResponse, CreatePlan], object]) -> _Finder:
    return lambda request, plan: path if asks(request, plan) else None


def _item(item_type: str) -> _Finder:
    def find(_request: CreateResponse, plan: CreatePlan) -> str | None:
        places = (index for index, item in enumerate(plan.items) if item.type == item_type)
        index = next(places, None)
        return None if index is None else f"input[{index}].type"

    return find


_NOT_YET: tuple[_Finder, ...] = (
    _field("tools", lambda _, plan: plan.tools),
    _field("text.format", lambda _, plan: not isinstance(plan.text.format, PlainTextFormat)),
    _field("context_management", lambda request, _: request.context_management),
    _item("compaction"),
)
