"""The bodies of ``/v1/conversations``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.core.validation.fields import check_metadata
from mlxcel_trio.core.validation.items import read_input
from mlxcel_trio.core.validation.refusals import invalid, missing

if TYPE_CHECKING:
    from mlxcel_trio.protocol.items import InputItem

MAX_NEW_ITEMS = 20


def read_new_items(items: list[InputItem] | None, *, required: bool = False) -> tuple[InputItem, ...]:
    """The items that a request adds to a conversation.

    :raises InvalidRequestError: more than 20, none although ``required``, or one that is no valid input.
    """
    if items is None:
        if required:
            raise missing("items", "a list of items")
        return ()
    if len(items) > MAX_NEW_ITEMS:
        raise invalid("items", f"{len(items)} are too many at once. Send at most {MAX_NEW_ITEMS}.")
    read = read_input(items, "items")
    for index, item in enumerate(read):
        if item.type == "compaction":
            raise invalid(f"items[{index}].type", "compaction items are not supported by this version yet.")
    return read


def read_metadata(metadata: dict[str, str] | None, *, required: bool = False) -> dict[str, str]:
    """The metadata of a conversation.

    :raises InvalidRequestError: over the limits, or absent although ``required``.
    """
    if metadata is None and required:
        raise missing("metadata", "an object; an empty one removes what there was")
    check_metadata(metadata or {})
    return metadata or {}
