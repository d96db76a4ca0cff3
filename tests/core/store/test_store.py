"""The bounds of a store at their edges, and who sees what."""

from __future__ import annotations

import sys
from itertools import permutations

import pytest

from mlxcel_trio.core.store import ENTRY_OVERHEAD_BYTES, BoundedStore, Key, StoreLimits
from mlxcel_trio.core.transcript import EMPTY, StoredItem, Transcript
from mlxcel_trio.errors import ConfigurationError

ENTRY_BYTES = ENTRY_OVERHEAD_BYTES + sys.getsizeof("a")


def a_store(
    *, max_entries: int = 100, max_bytes: int = 1_000_000, ttl_seconds: float = 100
) -> BoundedStore[str]:
    return BoundedStore(StoreLimits(max_entries=max_entries, max_bytes=max_bytes, ttl_seconds=ttl_seconds))


def key(name: str, owner: str | None = None) -> Key:
    return Key(owner, name)


def items(*ids: str) -> list[StoredItem]:
    return [StoredItem(item_id, b'{"id":"%b"}' % item_id.encode()) for item_id in ids]


def present(store: BoundedStore[str], names: str, *, now: float = 0) -> str:
    """Those of the one-letter names that are stored; looking makes each of them the last one used."""
    return "".join(name for name in names if store.get(key(name), now=now))


def put(
    store: BoundedStore[str],
    name: str,
    *,
    own_bytes: int = 0,
    transcript: Transcript = EMPTY,
    now: float = 0,
    ttl_seconds: float | None = None,
) -> bool:
    return store.put(
        key(name), name, own_bytes=own_bytes, transcript=transcript, now=now, ttl_seconds=ttl_seconds
    )


# Number and order of use


def test_the_least_recently_used_goes_first() -> None:
    store = a_store(max_entries=3)
    for name in "abc":
        put(store, name)
    store.get(key("a"), now=0)
    store.update(key("b"), "b2", own_bytes=0, transcript=EMPTY, now=0)
    put(store, "d")
    assert present(store, "abcd") == "abd"
    put(store, "a")
    put(store, "e")
    assert present(store, "abde") == "ade"


def test_finding_an_item_is_no_use_of_its_entry() -> None:
    store = a_store(max_entries=2)
    put(store, "a", transcript=EMPTY.append(items("msg")))
    put(store, "b")
    assert store.find_item(None, "msg", now=0) is not None
    put(store, "c")
    assert present(store, "abc") == "bc"


@pytest.mark.parametrize(("max_entries", "enabled"), [(0, False), (1, True)])
def test_no_entries_is_no_store(max_entries: int, enabled: bool) -> None:
    store = a_store(max_entries=max_entries)
    assert store.enabled is enabled
    assert put(store, "a") is enabled
    assert len(store) == max_entries


@pytest.mark.parametrize("name", ["max_entries", "max_bytes", "ttl_seconds"])
def test_negative_bounds(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        StoreLimits(**{"max_entries": 1, "max_bytes": 1, "ttl_seconds": 1, name: -1})


# Memory


def test_bytes_to_the_last_one() -> None:
    store = a_store(max_bytes=2 * ENTRY_BYTES + 10)
    assert put(store, "a")
    assert put(store, "b", own_bytes=10)
    assert store.retained_bytes == 2 * ENTRY_BYTES + 10
    assert present(store, "ab") == "ab"
    assert put(store, "b", own_bytes=11)
    assert present(store, "ab") == "b"


def test_a_store_of_no_bytes_keeps_nothing() -> None:
    store = a_store(max_bytes=0)
    assert store.enabled
    assert not put(store, "a")
    assert (len(store), store.retained_bytes) == (0, 0)


def test_what_fits_alone_may_cost_all_others_and_what_does_not_costs_none() -> None:
    store = a_store(max_bytes=4 * ENTRY_BYTES)
    for name in "abc":
        put(store, name)
    assert not put(store, "d", own_bytes=3 * ENTRY_BYTES + 1)
    assert present(store, "abcd") == "abc"
    assert put(store, "d", own_bytes=3 * ENTRY_BYTES)
    assert present(store, "abcd") == "d"


@pytest.mark.parametrize("how", ["put", "update"])
def test_what_outgrows_the_store_is_gone_under_its_old_value_too(how: str) -> None:
    store = a_store(max_bytes=4 * ENTRY_BYTES)
    put(store, "a")
    put(store, "b")
    if how == "put":
        assert not put(store, "b", own_bytes=4 * ENTRY_BYTES)
    else:
        assert not store.update(key("b"), "b", own_bytes=4 * ENTRY_BYTES, transcript=EMPTY, now=0)
    assert present(store, "ab") == "a"
    assert store.retained_bytes == ENTRY_BYTES


def test_an_entry_fits_only_with_its_whole_history() -> None:
    """The parent holds most of the history; the child is small but can never stand alone."""
    history = EMPTY.append(items("msg_1"))
    longer = history.append(items("msg_2"))
    store = a_store(max_bytes=ENTRY_BYTES + longer.size_bytes - 1)
    assert put(store, "a", transcript=history)
    assert not put(store, "b", transcript=longer)
    assert present(store, "ab") == "a"


def test_shared_history_is_counted_once() -> None:
    store = a_store()
    history = EMPTY.append(items("msg_1", "msg_2")).append(items("msg_3"))
    put(store, "a", transcript=history)
    assert store.retained_bytes == ENTRY_BYTES + history.size_bytes
    put(store, "b", transcript=history)
    put(store, "c", transcript=history.append(items("msg_4")))
    branch = history.append(items("msg_5"))
    put(store, "d", transcript=branch)
    added = branch.size_bytes - history.size_bytes
    assert store.retained_bytes == 4 * ENTRY_BYTES + history.size_bytes + 2 * added
    for name in "abc":
        store.delete(key(name), now=0)
    assert store.retained_bytes == ENTRY_BYTES + branch.size_bytes
    store.delete(key("d"), now=0)
    assert store.retained_bytes == 0


def test_an_item_in_two_branches_is_counted_once() -> None:
    """Two turns on one conversation: each response has its own start, the conversation has both turns."""
    start = EMPTY.append(items("msg_1"))
    first, second = items("msg_2"), items("msg_3")
    store = a_store()
    put(store, "a", transcript=start.append(first))
    put(store, "b", transcript=start.append(second))
    before = store.retained_bytes
    both = start.append(first).append(second)
    put(store, "c", transcript=both)
    content = sum(item.size_bytes for item in first + second)
    assert store.retained_bytes - before == ENTRY_BYTES + both.size_bytes - start.size_bytes - content


# Age


@pytest.mark.parametrize("ttl_seconds", [5, 0.5])
@pytest.mark.parametrize("start", [0, 1.5, 1e9])
def test_an_entry_lives_until_it_is_as_old_as_its_ttl(ttl_seconds: float, start: float) -> None:
    store = a_store(ttl_seconds=ttl_seconds)
    put(store, "a", now=start, transcript=EMPTY.append(items("msg")))
    just_before = start + ttl_seconds - 2**-20
    assert store.get(key("a"), now=just_before)
    assert store.find_item(None, "msg", now=just_before)
    assert store.find_item(None, "msg", now=start + ttl_seconds) is None
    assert store.get(key("a"), now=start + ttl_seconds) is None
    assert (len(store), store.retained_bytes) == (0, 0)


def test_use_keeps_nothing_alive_and_only_a_put_starts_the_age_again() -> None:
    store = a_store(ttl_seconds=10)
    for name in "abc":
        put(store, name, now=0)
    store.get(key("a"), now=9)
    assert store.update(key("b"), "b2", own_bytes=0, transcript=EMPTY, now=9)
    put(store, "c", now=9)
    assert present(store, "abc", now=10) == "c"
    assert present(store, "c", now=18) == "c"
    assert present(store, "c", now=19) == ""


def test_a_ttl_of_its_own() -> None:
    store = a_store(ttl_seconds=10)
    put(store, "a", ttl_seconds=2)
    put(store, "b", ttl_seconds=0)
    put(store, "c")
    put(store, "d", ttl_seconds=20)
    put(store, "d", ttl_seconds=3)
    store.update(key("c"), "c2", own_bytes=0, transcript=EMPTY, now=1)
    store.update(key("d"), "d2", own_bytes=0, transcript=EMPTY, now=1)
    for now, expected in [(1, "abcd"), (2, "bcd"), (3, "bc"), (9, "bc"), (10, "b"), (1e9, "b")]:
        assert present(store, "abcd", now=now) == expected


def test_no_ttl() -> None:
    store = a_store(ttl_seconds=0)
    put(store, "a")
    assert present(store, "a", now=1e12) == "a"


def test_what_is_too_old_makes_room_before_what_is_not() -> None:
    store = a_store(max_entries=2, ttl_seconds=10)
    put(store, "a", now=0, ttl_seconds=100)
    put(store, "b", now=0)
    put(store, "c", now=10)
    assert present(store, "abc", now=10) == "ac"


def test_nothing_is_updated_that_is_not_there() -> None:
    store = a_store(ttl_seconds=10)
    assert not store.update(key("a"), "a", own_bytes=0, transcript=EMPTY, now=0)
    put(store, "a")
    assert not store.update(key("a"), "a", own_bytes=0, transcript=EMPTY, now=10)
    assert len(store) == 0


# Chains, items and owners


def test_every_hop_is_readable_whichever_others_are_gone() -> None:
    hops = "abcdef"
    for gone in hops:
        store = a_store()
        transcript = EMPTY
        for hop in hops:
            transcript = transcript.append(items(f"{hop}_in", f"{hop}_out"))
            put(store, hop, transcript=transcript)
        store.delete(key(gone), now=0)
        del transcript
        for position, hop in enumerate(hops):
            entry = store.get(key(hop), now=0)
            if hop == gone:
                assert entry is None
                continue
            assert entry is not None
            expected = [f"{name}_{end}" for name in hops[: position + 1] for end in ("in", "out")]
            assert [item.id for item in entry.transcript.all_items()] == expected


def test_an_item_is_found_as_long_as_any_entry_holds_it() -> None:
    store = a_store()
    parent = EMPTY.append(items("msg_1"))
    put(store, "a", transcript=parent)
    put(store, "b", transcript=parent.append(items("msg_2")))
    store.delete(key("a"), now=0)
    found = store.find_item(None, "msg_1", now=0)
    assert found is parent.items[0]
    store.delete(key("b"), now=0)
    assert store.find_item(None, "msg_1", now=0) is None
    assert store.find_item(None, "msg_2", now=0) is None


def test_of_items_with_one_id_the_latest_is_found() -> None:
    store = a_store()
    [one], [two], [three] = items("msg"), items("msg"), items("msg")
    put(store, "a", transcript=EMPTY.append([one]))
    put(store, "b", transcript=EMPTY.append([two]).append([three]))
    put(store, "c", transcript=EMPTY.append([one]))
    for gone, expected in [("a", three), ("b", one), ("c", None)]:
        store.delete(key(gone), now=0)
        assert store.find_item(None, "msg", now=0) is expected


@pytest.mark.parametrize("order", list(permutations("abcd")))
def test_whichever_goes_the_latest_of_the_others_is_found(order: tuple[str, ...]) -> None:
    store = a_store()
    left = {}
    for name in "abcd":
        left[name] = StoredItem("msg", b"{}")
        put(store, name, transcript=EMPTY.append([left[name]]))
    for name in order:
        store.delete(key(name), now=0)
        del left[name]
        expected = left[max(left)] if left else None
        assert store.find_item(None, "msg", now=0) is expected


def test_owners_do_not_see_each_other() -> None:
    store = a_store()
    for owner in (None, "x", "y"):
        transcript = EMPTY.append(items(f"msg_of_{owner}"))
        store.put(key("a", owner), f"{owner}", own_bytes=0, transcript=transcript, now=0)
    assert store.find_item("x", "msg_of_y", now=0) is None
    assert store.find_item("z", "msg_of_y", now=0) is None
    assert store.get(key("a", "z"), now=0) is None
    assert store.delete(key("a", "z"), now=0) is None
    deleted = store.delete(key("a", "x"), now=0)
    assert deleted is not None
    assert deleted.value == "x"
    for owner in (None, "y"):
        entry = store.get(key("a", owner), now=0)
        assert entry is not None
        assert entry.value == f"{owner}"
        assert store.find_item(owner, f"msg_of_{owner}", now=0) is entry.transcript.items[0]
