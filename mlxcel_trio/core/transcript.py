"""The items of a dialogue, kept so that many responses can share them.

A transcript never changes. Appending to it makes a new one that points to the old one as its parent and
holds only the items that are new. So the responses of a chain share their history, and a child goes on
working whatever becomes of its parents. Two turns that start from the same transcript make two branches.

Items are kept as encoded JSON: of all forms it is the smallest, its size is known exactly, and the garbage
collector has nothing to walk through. The same :class:`StoredItem` may be in many transcripts (a reference to
an item; a conversation and the response that extended it). Whoever counts memory counts it once, by identity.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ITEM_OVERHEAD_BYTES = 224
"""What an item costs besides its two strings: its struct and its places in a transcript and in a store."""

LINK_OVERHEAD_BYTES = 224
"""What appending costs besides the items: a transcript, its tuple and its place in a store."""


class StoredItem(Struct, frozen=True, eq=False, gc=False):
    """An item of a dialogue. Compared by identity, since ids may repeat: clients choose some of them.

    ``encoded`` is the item as clients see it, one JSON object that carries ``id`` and ``type``.
    """

    id: str
    encoded: bytes

    @property
    def size_bytes(self) -> int:
        """Memory that the item takes while a store holds it, approximately."""
        return sys.getsizeof(self.id) + sys.getsizeof(self.encoded) + ITEM_OVERHEAD_BYTES


class Transcript(Struct, frozen=True, eq=False):
    """What was said up to some moment: ``items`` were the last to be appended, ``parent`` holds those before.

    Made from :data:`EMPTY` by ``append``. ``size_bytes`` is the memory of the whole transcript, approximately
    and at most: an item that occurs in it twice is counted twice.
    """

    parent: Transcript | None
    items: tuple[StoredItem, ...]
    size_bytes: int

    def append(self, items: Iterable[StoredItem]) -> Transcript:
        """This transcript with ``items`` behind it, or itself when there are none. The past is not copied."""
        added = tuple(items)
        if not added:
            return self
        size = LINK_OVERHEAD_BYTES + sum(item.size_bytes for item in added)
        return Transcript(self, added, self.size_bytes + size)

    def without(self, item_id: str) -> Transcript:
        """This transcript less every item with that id, or itself when there is none.

        Whatever precedes the first such item stays shared with this transcript, and so do all other items.
        """
        result = EMPTY
        for link in reversed(list(self.links())):
            kept = [item for item in link.items if item.id != item_id]
            untouched = link.parent is result and len(kept) == len(link.items)
            result = link if untouched else result.append(kept)
        return result

    def links(self) -> Iterator[Transcript]:
        """This transcript and those it extends, newest first; ``EMPTY`` is left out."""
        link = self
        while link.parent is not None:
            yield link
            link = link.parent

    def all_items(self) -> tuple[StoredItem, ...]:
        """Every item, oldest first."""
        links = reversed(list(self.links()))
        return tuple(item for link in links for item in link.items)

    def __repr__(self) -> str:
        # The generated one would recurse through all parents.
        count = sum(len(link.items) for link in self.links())
        return f"<Transcript of {count} items, {self.size_bytes} bytes>"


EMPTY = Transcript(None, (), 0)
"""The transcript in which nothing was said yet."""
