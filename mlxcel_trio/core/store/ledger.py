"""Reference counts over transcripts: what is shared is counted once, and items are found by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.core.transcript import LINK_OVERHEAD_BYTES

if TYPE_CHECKING:
    from mlxcel_trio.core.transcript import StoredItem, Transcript


class Ledger:
    """What the transcripts of one owner's entries hold, together.

    Each link of a transcript has a count: of the entries that end with it and of the counted links behind
    it. So holding a transcript touches only links that nobody held before, and releasing it only those that
    nobody holds any more. A link that comes or goes counts one more or less on each of its items.
    """

    def __init__(self) -> None:
        self._links: dict[Transcript, int] = {}
        self._items: dict[StoredItem, int] = {}
        self._index = _ItemIndex()

    def find(self, item_id: str) -> StoredItem | None:
        """An item that is held; of several with that id the one that came last."""
        return self._index.find(item_id)

    def hold(self, transcript: Transcript) -> int:
        """Count one more entry that ends with ``transcript``; returns the bytes that nobody held before."""
        new_links = []
        for link in transcript.links():
            count = self._links.get(link, 0)
            self._links[link] = count + 1
            if count:
                break
            new_links.append(link)
        added = LINK_OVERHEAD_BYTES * len(new_links)
        # Oldest first: of items with one id the index prefers what comes last.
        for link in reversed(new_links):
            for item in link.items:
                added += self._hold_item(item)
        return added

    def release(self, transcript: Transcript) -> int:
        """Take one ``hold`` of ``transcript`` back; returns the bytes that nobody holds any more.

        :raises KeyError: it is not held.
        """
        freed = 0
        for link in transcript.links():
            count = self._links[link]
            if count > 1:
                self._links[link] = count - 1
                break
            del self._links[link]
            freed += LINK_OVERHEAD_BYTES
            for item in link.items:
                freed += self._release_item(item)
        return freed

    def _hold_item(self, item: StoredItem) -> int:
        count = self._items.get(item, 0)
        self._items[item] = count + 1
        if count:
            return 0
        self._index.add(item)
        return item.size_bytes

    def _release_item(self, item: StoredItem) -> int:
        count = self._items[item]
        if count > 1:
            self._items[item] = count - 1
            return 0
        del self._items[item]
        self._index.remove(item)
        return item.size_bytes


class _ItemIndex:
    """Items by id. Most ids have one item, but replayed items repeat theirs.

    ``_older`` has all but the newest in order of arrival, as keys of a dict: any one can go in constant time.
    """

    def __init__(self) -> None:
        self._newest: dict[str, StoredItem] = {}
        self._older: dict[str, dict[StoredItem, None]] = {}

    def find(self, item_id: str) -> StoredItem | None:
        return self._newest.get(item_id)

    def add(self, item: StoredItem) -> None:
        previous = self._newest.get(item.id)
        if previous is not None:
            self._older.setdefault(item.id, {})[previous] = None
        self._newest[item.id] = item

    def remove(self, item: StoredItem) -> None:
        older = self._older.get(item.id)
        if older is None:
            del self._newest[item.id]
            return
        if self._newest[item.id] is item:
            self._newest[item.id], _ = older.popitem()
        else:
            del older[item]
        if not older:
            del self._older[item.id]
