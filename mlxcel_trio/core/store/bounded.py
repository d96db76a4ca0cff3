"""The store itself: entries in order of use, within bounds of number, memory and age."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from msgspec import Struct

from mlxcel_trio.core.store.expiry import ExpiryQueues
from mlxcel_trio.core.store.ledger import Ledger
from mlxcel_trio.core.transcript import EMPTY, Transcript
from mlxcel_trio.errors import ConfigurationError

if TYPE_CHECKING:
    from mlxcel_trio.core.transcript import StoredItem

V = TypeVar("V")

ENTRY_OVERHEAD_BYTES = 640
"""What an entry costs besides its id, its value and its transcript: structs, and places in two queues."""


class StoreLimits(Struct, frozen=True, kw_only=True):
    """The bounds of a store.

    ``max_entries`` 0 means that there is no store; to refuse requests then is the caller's part.
    ``max_bytes`` 0 is a store that keeps nothing. ``ttl_seconds`` 0 is none: nothing grows too old.

    :raises ConfigurationError: a negative bound.
    """

    max_entries: int
    max_bytes: int
    ttl_seconds: float

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (value := getattr(self, name)) < 0:
                raise ConfigurationError(f"{name} of a store cannot be {value}. Use 0 or more.")


class Key(NamedTuple):
    """The name of an entry: whose it is, and its id."""

    owner: str | None
    id: str


class Entry(Struct, Generic[V], frozen=True):
    """What is stored under a key. ``own_bytes`` is its memory without the transcript, overheads included."""

    value: V
    transcript: Transcript
    own_bytes: int
    ttl_seconds: float


class BoundedStore(Generic[V]):
    """Values with transcripts; the least recently used go first.

    ``put`` and ``update`` keep the bounds: when they return, at most ``max_entries`` and ``max_bytes`` are
    retained, and what had to go for that is what was not put, updated or got for longest. An entry that would
    not fit even alone, with all of its transcript, is not kept and costs no other entry its place.

    Every method first drops what is due at ``now``. Apart from that each takes constant time, amortised over
    the links and items that were put, however much is stored.
    """

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._entries: OrderedDict[Key, Entry[V]] = OrderedDict()
        self._ages: ExpiryQueues[Key] = ExpiryQueues()
        # Owners are the API keys of a server: too few to be worth forgetting.
        self._ledgers: defaultdict[str | None, Ledger] = defaultdict(Ledger)
        self._bytes = 0

    @property
    def enabled(self) -> bool:
        """Whether there is a store at all."""
        return self._limits.max_entries > 0

    @property
    def retained_bytes(self) -> int:
        """Approximate memory of all entries; what they share is counted once for each owner."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, *, now: float) -> Entry[V] | None:
        """The entry of that key, ``None`` when there is none. It is the most recently used one now."""
        self.expire(now=now)
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def find_item(self, owner: str | None, item_id: str, *, now: float) -> StoredItem | None:
        """An item of that id in the transcripts of the owner's entries: the one that came last, if any.

        No entry counts as used by it.
        """
        self.expire(now=now)
        ledger = self._ledgers.get(owner)
        return None if ledger is None else ledger.find(item_id)

    def put(
        self,
        key: Key,
        value: V,
        *,
        own_bytes: int,
        transcript: Transcript = EMPTY,
        now: float,
        ttl_seconds: float | None = None,
    ) -> bool:
        """Store a value under a new key, or in place of what the key had; its age counts from ``now``.

        :param own_bytes: approximate memory of the value, without the transcript.
        :param ttl_seconds: a TTL other than the store's; 0 is none.
        :returns: whether it was kept. If not, the key has nothing now.
        """
        self.expire(now=now)
        if ttl_seconds is None:
            ttl_seconds = self._limits.ttl_seconds
        entry = Entry(value, transcript, _with_overhead(own_bytes, key), ttl_seconds)
        if not self._fits_alone(entry):
            self._remove(key)
            return False
        previous = self._keep(key, entry)
        if previous is not None:
            self._ages.stop(key, ttl_seconds=previous.ttl_seconds)
        self._ages.start(key, ttl_seconds=ttl_seconds, now=now)
        self._make_room()
        return key in self._entries

    def update(self, key: Key, value: V, *, own_bytes: int, transcript: Transcript, now: float) -> bool:
        """Replace what a key has while its age goes on; otherwise as ``put``.

        :returns: whether the key had something and has the new value now.
        """
        self.expire(now=now)
        previous = self._entries.get(key)
        if previous is None:
            return False
        entry = Entry(value, transcript, _with_overhead(own_bytes, key), previous.ttl_seconds)
        if not self._fits_alone(entry):
            self._remove(key)
            return False
        self._keep(key, entry)
        self._make_room()
        return True

    def delete(self, key: Key, *, now: float) -> Entry[V] | None:
        """Forget the entry of that key and return it, ``None`` when there is none."""
        self.expire(now=now)
        return self._remove(key)

    def expire(self, *, now: float) -> None:
        """Drop what is due. Nobody has to call this but to have the memory back sooner."""
        while (key := self._ages.due(now)) is not None:
            self._remove(key)

    def _fits_alone(self, entry: Entry[V]) -> bool:
        return entry.own_bytes + entry.transcript.size_bytes <= self._limits.max_bytes

    def _keep(self, key: Key, entry: Entry[V]) -> Entry[V] | None:
        """Make an entry the most recently used one and return the one whose place it takes."""
        ledger = self._ledgers[key.owner]
        # Hold the new transcript before letting go of the old one, or all that they share is counted anew.
        self._bytes += entry.own_bytes + ledger.hold(entry.transcript)
        previous = self._entries.pop(key, None)
        if previous is not None:
            self._bytes -= previous.own_bytes + ledger.release(previous.transcript)
        self._entries[key] = entry
        return previous

    def _make_room(self) -> None:
        while len(self._entries) > self._limits.max_entries or self._bytes > self._limits.max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: Key) -> Entry[V] | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.own_bytes + self._ledgers[key.owner].release(entry.transcript)
            self._ages.stop(key, ttl_seconds=entry.ttl_seconds)
        return entry


def _with_overhead(own_bytes: int, key: Key) -> int:
    return ENTRY_OVERHEAD_BYTES + sys.getsizeof(key.id) + own_bytes
