"""Pages over a list of items, newest first unless asked otherwise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from msgspec import Raw, Struct

from mlxcel_trio.core.validation.refusals import check_choice, invalid, shown
from mlxcel_trio.protocol.lists import ItemList

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcel_trio.core.transcript import StoredItem

DEFAULT_LIMIT = 20
MAX_LIMIT = 100

_LIMIT = re.compile(r"[0-9]{1,3}")


class PageQuery(Struct, frozen=True):
    """Which page is asked for: ``limit`` items in that order, from the one behind the item ``after`` on."""

    order: Literal["asc", "desc"] = "desc"
    limit: int = DEFAULT_LIMIT
    after: str | None = None


def read_page_query(parameters: Mapping[str, str]) -> PageQuery:
    """The page that the parameters of a URL ask for. Parameters with other names are not looked at.

    :raises InvalidRequestError: an unknown order, a limit that is not a number from 1 to 100.
    """
    order = parameters.get("order", "desc")
    check_choice("order", order, ("asc", "desc"))
    return PageQuery(
        order="asc" if order == "asc" else "desc",
        limit=_read_limit(parameters.get("limit", str(DEFAULT_LIMIT))),
        after=parameters.get("after"),
    )


def page_of(items: Sequence[StoredItem], query: PageQuery) -> ItemList:
    """One page of ``items``, which are in order from old to new.

    Of items with one id only the latest is listed: an id is all that a client has to go on from.

    :raises InvalidRequestError: no item has the id ``after``.
    """
    listed: dict[str, StoredItem] = {}
    for item in reversed(items):
        listed.setdefault(item.id, item)
    ordered = list(listed.values())
    if query.order == "asc":
        ordered.reverse()
    start = 0 if query.after is None else _position_behind(query.after, ordered)
    page = ordered[start : start + query.limit]
    return ItemList(
        data=tuple(Raw(item.encoded) for item in page),
        first_id=page[0].id if page else "",
        last_id=page[-1].id if page else "",
        has_more=start + len(page) < len(ordered),
    )


def _position_behind(item_id: str, items: Sequence[StoredItem]) -> int:
    for position, item in enumerate(items, start=1):
        if item.id == item_id:
            return position
    raise invalid(
        "after",
        f"no item here has the id {shown(item_id)}. Use the 'last_id' of a page.",
        code="item_not_found",
    )


def _read_limit(text: str) -> int:
    limit = int(text) if _LIMIT.fullmatch(text) else 0
    if not 1 <= limit <= MAX_LIMIT:
        raise invalid("limit", f"{shown(text)} is not a whole number from 1 to {MAX_LIMIT}.")
    return limit
