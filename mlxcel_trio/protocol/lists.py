"""Pages of items: ``GET /v1/responses/{id}/input_items`` and ``GET /v1/conversations/{id}/items``."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct


class ItemList(Struct, frozen=True, kw_only=True):
    """One page. ``data`` holds items as they are stored; the ids of an empty page are empty strings.

    The published models of this list know no null there.
    """

    object: Literal["list"] = "list"
    data: tuple[Raw, ...]
    first_id: str
    last_id: str
    has_more: bool
