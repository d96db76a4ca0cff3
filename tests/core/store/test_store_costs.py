"""What a store costs: steps, counted as executed lines, and memory, as Python allocates it."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_trio.core.store import BoundedStore, Key, StoreLimits
from mlxcel_trio.core.transcript import EMPTY, StoredItem

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

ITEMS_PER_HOP = 2


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of the package ``call`` executes; what a garbage collection runs is not its doing."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        if "mlxcel_trio" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    return count


def hop(number: int) -> list[StoredItem]:
    return [StoredItem(f"msg_{number}_{index}", b"{}") for index in range(ITEMS_PER_HOP)]


def name(number: int) -> Key:
    return Key(None, f"resp_{number:08}")


def filled(count: int, *, chain: bool, max_entries: int = 1_000_000) -> BoundedStore[None]:
    """A store into which ``count`` responses went, one a second, as one chain or each by itself."""
    limits = StoreLimits(max_entries=max_entries, max_bytes=10**9, ttl_seconds=10**6)
    store: BoundedStore[None] = BoundedStore(limits)
    transcript = EMPTY
    for number in range(count):
        transcript = (transcript if chain else EMPTY).append(hop(number))
        store.put(name(number), None, own_bytes=0, transcript=transcript, now=number)
    return store


def costs(count: int, *, chain: bool) -> dict[str, int]:
    """Lines run by each operation on a store of that size."""
    store = filled(count, chain=chain, max_entries=count)
    first, last, now = name(0), name(count - 1), count
    newest = store.get(last, now=now)
    assert newest is not None
    transcript = newest.transcript
    child = transcript.append(hop(count))
    measured = {
        "get": lines_run(lambda: store.get(first, now=now)),
        "get nothing": lines_run(lambda: store.get(Key(None, "?"), now=now)),
        "find": lines_run(lambda: store.find_item(None, "msg_0_0", now=now)),
        "append": lines_run(lambda: transcript.append(hop(count))),
        "put and evict": lines_run(
            lambda: store.put(name(count), None, own_bytes=0, transcript=child, now=now)
        ),
        "replace": lines_run(
            lambda: store.put(name(count), None, own_bytes=0, transcript=child.append(hop(-1)), now=now)
        ),
        "update": lines_run(lambda: store.update(last, None, own_bytes=0, transcript=transcript, now=now)),
        "delete": lines_run(lambda: store.delete(name(count // 2), now=now)),
        "expire one": lines_run(lambda: store.expire(now=10**6 + 2)),
    }
    assert store.get(last, now=now)
    return measured


@pytest.mark.parametrize("chain", [False, True])
def test_no_operation_costs_more_in_a_full_store(chain: bool) -> None:
    small, large = costs(10, chain=chain), costs(1000, chain=chain)
    assert small == large
    assert 0 < max(large.values()) < 200


def test_a_conversation_that_grows_is_not_counted_anew() -> None:
    """Its one entry is the only holder of its transcript, each time until the longer one replaces it."""
    store = filled(0, chain=False)
    transcript = EMPTY
    lines = []
    for number in range(100):
        transcript = transcript.append(hop(number))
        append = partial(store.put, name(0), None, own_bytes=0, transcript=transcript, now=number)
        lines.append(lines_run(append))
    assert min(lines[1:]) == max(lines[1:])


def test_the_last_holder_of_a_chain_pays_for_it_once() -> None:
    per_hop = []
    for count in (100, 1000):
        store = filled(count, chain=True, max_entries=1)
        lines = lines_run(partial(store.delete, name(count - 1), now=count))
        assert store.retained_bytes == 0
        per_hop.append(lines / count)
    assert per_hop[1] <= per_hop[0]


def test_many_items_with_one_id() -> None:
    """Clients that replay a whole dialogue each time repeat its ids in every response."""
    store = filled(0, chain=False)
    for number in range(1000):
        transcript = EMPTY.append([StoredItem("msg", b"{}")])
        store.put(name(number), None, own_bytes=0, transcript=transcript, now=0)
    deletions = [lines_run(partial(store.delete, name(number), now=0)) for number in (0, 500, 998)]
    assert max(deletions) == min(deletions) < 100
    assert store.find_item(None, "msg", now=0) is not None


@pytest.mark.parametrize(("hops", "text_bytes"), [(1, 0), (1, 2000), (12, 100)])
def test_counted_bytes_are_honest(hops: int, text_bytes: int) -> None:
    """After a churn through a full store, what Python has allocated is near what is counted."""
    limits = StoreLimits(max_entries=10**6, max_bytes=1_500_000, ttl_seconds=3600)
    gc.collect()
    tracemalloc.start()
    try:
        store: BoundedStore[bytes] = BoundedStore(limits)
        transcript = EMPTY
        for number in range(2500):
            if number % hops == 0:
                transcript = EMPTY
            ids = [f"msg_{2 * number + index:048x}" for index in range(2)]
            transcript = transcript.append([StoredItem(item_id, bytes(150 + text_bytes)) for item_id in ids])
            value = bytes(300 + text_bytes)
            key = Key(None, f"resp_{number:048x}")
            store.put(key, value, own_bytes=sys.getsizeof(value), transcript=transcript, now=number / 10)
            assert store.retained_bytes <= limits.max_bytes
        gc.collect()
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store) < 2500
    assert limits.max_bytes * 0.95 < store.retained_bytes
    assert 0.7 < allocated / store.retained_bytes < 1.1
