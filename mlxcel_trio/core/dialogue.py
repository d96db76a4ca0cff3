"""What a request continues and what it adds: the dialogue that a response answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mlxcel_trio.core.stored_items import fresh_id, has_server_id, read_items, store_input, store_output
from mlxcel_trio.core.transcript import StoredItem, Transcript
from mlxcel_trio.core.validation.pairing import check_tool_pairing
from mlxcel_trio.core.validation.refusals import invalid, shown
from mlxcel_trio.protocol.items import InputItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mlxcel_trio.protocol.responses import OutputItem


class Dialogue(Struct, frozen=True):
    """``history`` and the request's ``own`` input behind it; ``items`` is all of it, ready to be rendered."""

    history: Transcript
    own: tuple[StoredItem, ...]
    items: tuple[InputItem, ...]

    def turn(self, output: Iterable[OutputItem]) -> tuple[StoredItem, ...]:
        """What the request and its response add to the history."""
        return (*self.own, *map(store_output, output))


def continue_dialogue(
    history: Transcript,
    items: Sequence[InputItem],
    *,
    find_item: Callable[[str], StoredItem | None],
    new_id: Callable[[str], str],
    path: str = "input",
) -> Dialogue:
    """Put validated input behind a history.

    References are resolved by ``find_item``. What is in the dialogue already is not repeated, be it given as
    a reference or in full. Items keep their ids; those without one get one from ``new_id``, and so do those
    that repeat the id of another one of the dialogue. ``path`` is the field of the request that holds them.

    :raises InvalidRequestError: an unknown reference, an output without its call, a call id used twice.
    """
    past = read_items(history.all_items())
    reader = _InputReader(past, find_item, new_id)
    for index, item in enumerate(items):
        reader.add(item, f"{path}[{index}]")
    check_tool_pairing(reader.items, history=past, path=path)
    added = [item for item in reader.items if item is not _NOTHING_NEW]
    return Dialogue(history, tuple(reader.stored), (*past, *added))


# Keeps the place of an item that adds nothing, so that errors about later ones name the right place.
_NOTHING_NEW = InputItem(type="item_reference")


class _InputReader:
    """Reads a request's own items: ``items`` has one for each, ``stored`` those that add something."""

    def __init__(
        self,
        history: Iterable[InputItem],
        find_item: Callable[[str], StoredItem | None],
        new_id: Callable[[str], str],
    ) -> None:
        self._known = {item.id: item for item in history}
        self._own_ids: set[str | None] = set()
        self._find_item = find_item
        self._new_id = new_id
        self.items: list[InputItem] = []
        self.stored: list[StoredItem] = []

    def add(self, item: InputItem, path: str) -> None:
        """Take the item at ``path`` of the request."""
        if item.type == "item_reference":
            self._add_reference(item.id or "", path)
            return
        if item.id and item.id in self._known and self._is_replayed(item, item.id):
            self.items.append(_NOTHING_NEW)
            return
        taken = item.id in self._own_ids or item.id in self._known
        item_id = item.id if item.id and not taken else fresh_id(item, self._new_id)
        self._take(item, store_input(item, item_id))

    def _add_reference(self, item_id: str, path: str) -> None:
        if item_id in self._known or item_id in self._own_ids:
            self.items.append(_NOTHING_NEW)
            return
        stored = self._find_item(item_id)
        if stored is None:
            raise invalid(
                f"{path}.id",
                f"no item with the id {shown(item_id)} is stored here. Send the item itself.",
                code="item_not_found",
            )
        self._take(read_items([stored])[0], stored)

    def _take(self, item: InputItem, stored: StoredItem) -> None:
        self._own_ids.add(stored.id)
        self.items.append(item)
        self.stored.append(stored)

    def _is_replayed(self, item: InputItem, item_id: str) -> bool:
        """Whether it is the item that has that id in the history.

        Clients that number their items anew in every request mean another one.
        """
        if not has_server_id(item):
            return False
        said = read_items([store_input(item, item_id)])[0]
        return replace(said, status=None) == replace(self._known[item_id], status=None)
