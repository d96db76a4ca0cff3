"""Any order of operations on a store, against a model that counts everything anew after each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct

from mlxcel_trio.core.store import ENTRY_OVERHEAD_BYTES, BoundedStore, Entry, Key, StoreLimits
from mlxcel_trio.core.transcript import EMPTY, LINK_OVERHEAD_BYTES, StoredItem, Transcript

KEYS = st.builds(Key, st.sampled_from([None, "key"]), st.sampled_from(["a", "b", "c"]))
ITEM_IDS = st.sampled_from(["msg_1", "msg_2"])
UNKNOWN = Key(None, "unknown")
OWN_BYTES = st.sampled_from([0, 50, 400, 3000])

Noticing = Callable[[BoundedStore[int], float], object]

NOTICING: list[Noticing] = [
    lambda store, now: store.expire(now=now),
    lambda store, now: store.get(UNKNOWN, now=now),
    lambda store, now: store.delete(UNKNOWN, now=now),
    lambda store, now: store.find_item(None, "unknown", now=now),
    lambda store, now: store.update(UNKNOWN, 0, own_bytes=0, transcript=EMPTY, now=now),
    lambda store, now: store.put(UNKNOWN, 0, own_bytes=10**9, now=now),
]
"""Calls that have no effect but to drop what is too old."""


class Stored(Struct):
    """What the model remembers of an entry. ``items`` is the whole dialogue, written out."""

    value: int
    transcript: Transcript
    items: tuple[StoredItem, ...]
    own_bytes: int
    ttl_seconds: float
    since: float


class Model:
    """A store that is right because it is slow: a dict in order of use and sums over everything in it."""

    def __init__(self, limits: StoreLimits) -> None:
        self.limits = limits
        self.entries: dict[Key, Stored] = {}
        self.arrivals: dict[str | None, list[StoredItem]] = {None: [], "key": []}

    def expire(self, now: float) -> None:
        for key, stored in list(self.entries.items()):
            if stored.ttl_seconds and now - stored.since >= stored.ttl_seconds:
                del self.entries[key]
        self.note_items()

    def put(self, key: Key, stored: Stored) -> bool:
        if stored.own_bytes + written_out_bytes(stored.transcript) > self.limits.max_bytes:
            self.entries.pop(key, None)
        else:
            # What is shared with the replaced entry stays held all along.
            replaced = self.entries.get(key)
            self.entries.pop(key, None)
            self.entries[key] = stored
            self.note_items(also=replaced.items if replaced else ())
            while self.bytes() > self.limits.max_bytes or len(self.entries) > self.limits.max_entries:
                del self.entries[next(iter(self.entries))]
        self.note_items()
        return key in self.entries

    def touch(self, key: Key) -> Stored | None:
        stored = self.entries.pop(key, None)
        if stored is not None:
            self.entries[key] = stored
        return stored

    def bytes(self) -> int:
        total = sum(stored.own_bytes for stored in self.entries.values())
        for owner in self.arrivals:
            transcripts = [stored.transcript for key, stored in self.entries.items() if key.owner == owner]
            links = {link for transcript in transcripts for link in transcript.links()}
            items = {item for link in links for item in link.items}
            total += LINK_OVERHEAD_BYTES * len(links) + sum(item.size_bytes for item in items)
        return total

    def note_items(self, also: Iterable[StoredItem] = ()) -> None:
        """Bring the order of arrival up to date."""
        for owner, arrived in self.arrivals.items():
            held = [
                item for key, stored in self.entries.items() if key.owner == owner for item in stored.items
            ]
            kept = [item for item in arrived if item in held or item in also]
            new = [item for item in dict.fromkeys(held) if item not in kept]
            arrived[:] = kept + new


def written_out_bytes(transcript: Transcript) -> int:
    links = list(transcript.links())
    return LINK_OVERHEAD_BYTES * len(links) + sum(item.size_bytes for link in links for item in link.items)


class StoreMachine(RuleBasedStateMachine):
    """Chains, branches, references, deletions and time, under small limits."""

    @initialize(
        max_entries=st.sampled_from([0, 1, 2, 4, 6, 6]),
        max_bytes=st.sampled_from([0, 1500, 3000, 6000, 100_000, 100_000]),
        ttl_seconds=st.sampled_from([0, 2, 5]),
    )
    def start(self, max_entries: int, max_bytes: int, ttl_seconds: float) -> None:
        limits = StoreLimits(max_entries=max_entries, max_bytes=max_bytes, ttl_seconds=ttl_seconds)
        self.limits = limits
        self.store: BoundedStore[int] = BoundedStore(limits)
        self.model = Model(limits)
        self.now = 1000.0
        self.values = 0
        self.items: list[StoredItem] = []
        # Transcripts outlive their entries here as they do in running requests.
        self.transcripts: list[tuple[Transcript, tuple[StoredItem, ...]]] = [(EMPTY, ())]

    @rule(data=st.data(), new=st.lists(ITEM_IDS, max_size=2), again=st.booleans())
    def append(self, data: st.DataObject, new: list[str], again: bool) -> None:
        base, before = data.draw(st.sampled_from(self.transcripts))
        added = [StoredItem(item_id, b"{}") for item_id in new]
        self.items += added
        if again and self.items:
            added.append(data.draw(st.sampled_from(self.items)))
        self.transcripts.append((base.append(added), (*before, *added)))

    @rule(data=st.data(), item_id=ITEM_IDS)
    def remove_from_transcript(self, data: st.DataObject, item_id: str) -> None:
        base, before = data.draw(st.sampled_from(self.transcripts))
        after = tuple(item for item in before if item.id != item_id)
        self.transcripts.append((base.without(item_id), after))

    @rule(key=KEYS, data=st.data(), own_bytes=OWN_BYTES, ttl_seconds=st.sampled_from([None, 0, 2, 3]))
    def put(self, key: Key, data: st.DataObject, own_bytes: int, ttl_seconds: float | None) -> None:
        stored = self.new_value(key, data, own_bytes)
        stored.ttl_seconds = self.limits.ttl_seconds if ttl_seconds is None else ttl_seconds
        before = dict(self.model.entries)
        expected = self.model.put(key, stored)
        kept = self.store.put(
            key,
            stored.value,
            own_bytes=own_bytes,
            transcript=stored.transcript,
            now=self.now,
            ttl_seconds=ttl_seconds,
        )
        assert kept is expected
        if not kept and self.limits.max_entries:
            event("does not fit alone")
            before.pop(key, None)
            assert set(self.store._entries) == set(before)

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data(), own_bytes=OWN_BYTES)
    def update(self, data: st.DataObject, own_bytes: int) -> None:
        key = data.draw(st.sampled_from(list(self.model.entries)))
        stored = self.new_value(key, data, own_bytes)
        previous = self.model.entries[key]
        stored.ttl_seconds, stored.since = previous.ttl_seconds, previous.since
        expected = self.model.put(key, stored)
        kept = self.store.update(
            key, stored.value, own_bytes=own_bytes, transcript=stored.transcript, now=self.now
        )
        assert kept is expected

    @rule(key=KEYS)
    def get(self, key: Key) -> None:
        self.check_entry(self.store.get(key, now=self.now), self.model.touch(key))

    @rule(key=KEYS)
    def delete(self, key: Key) -> None:
        expected = self.model.entries.pop(key, None)
        self.model.note_items()
        self.check_entry(self.store.delete(key, now=self.now), expected)
        assert self.store.get(key, now=self.now) is None

    @rule(seconds=st.sampled_from([0.5, 1, 2, 5]), noticed_by=st.sampled_from(NOTICING))
    def let_time_pass(self, seconds: float, noticed_by: Noticing) -> None:
        self.now += seconds
        self.model.expire(self.now)
        noticed_by(self.store, self.now)

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        assert list(self.store._entries) == list(self.model.entries)  # in order of use
        assert len(self.store) == len(self.model.entries) <= self.limits.max_entries
        assert self.store.retained_bytes == self.model.bytes() <= self.limits.max_bytes
        for key, stored in self.model.entries.items():
            self.check_entry(self.store._entries[key], stored)
        # In here, since it drops what is too old, which would hide that something else does not.
        for owner in (None, "key", "nobody"):
            latest = {item.id: item for item in self.model.arrivals.get(owner, [])}
            for item_id in ("msg_1", "msg_2", "?"):
                assert self.store.find_item(owner, item_id, now=self.now) is latest.get(item_id)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for key in list(self.model.entries)[::2]:
            self.store.delete(key, now=self.now)
        without_age = [key for key, stored in self.model.entries.items() if not stored.ttl_seconds]
        self.store.expire(now=self.now + 5)
        for key in without_age:
            self.store.delete(key, now=self.now + 5)
        assert (len(self.store), self.store.retained_bytes) == (0, 0)
        for ledger in self.store._ledgers.values():
            index = ledger._index
            assert [ledger._links, ledger._items, index._newest, index._older] == [{}, {}, {}, {}]
        assert not any(self.store._ages._queues.values())

    def new_value(self, key: Key, data: st.DataObject, own_bytes: int) -> Stored:
        transcript, items = data.draw(st.sampled_from(self.transcripts))
        self.values += 1
        size = ENTRY_OVERHEAD_BYTES + sys.getsizeof(key.id) + own_bytes
        return Stored(self.values, transcript, items, size, 0, self.now)

    def check_entry(self, entry: Entry[int] | None, stored: Stored | None) -> None:
        if entry is None or stored is None:
            assert entry is None
            assert stored is None
            return
        assert (entry.value, entry.transcript) == (stored.value, stored.transcript)
        assert (entry.own_bytes, entry.ttl_seconds) == (stored.own_bytes, stored.ttl_seconds)
        assert entry.transcript.all_items() == stored.items


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
