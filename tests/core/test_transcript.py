"""Transcripts: what they hold, what they share, and how long they may get."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.core.transcript import (
    EMPTY,
    ITEM_OVERHEAD_BYTES,
    LINK_OVERHEAD_BYTES,
    StoredItem,
    Transcript,
)


def of(*appended: str) -> Transcript:
    """A transcript in which each text was appended at once, one item a letter."""
    transcript = EMPTY
    for ids in appended:
        transcript = transcript.append(StoredItem(item_id, b"{}") for item_id in ids)
    return transcript


def ids(transcript: Transcript) -> str:
    return "".join(item.id for item in transcript.all_items())


def test_items_come_in_the_order_in_which_they_were_appended() -> None:
    transcript = of("ab", "c", "de")
    assert ids(transcript) == "abcde"
    assert [len(link.items) for link in transcript.links()] == [2, 1, 2]
    assert transcript.parent is not None
    assert ids(transcript.parent) == "abc"
    assert list(EMPTY.links()) == []
    assert EMPTY.all_items() == ()


def test_appending_nothing_is_the_same_transcript() -> None:
    transcript = of("a")
    assert transcript.append([]) is transcript
    assert EMPTY.append(()) is EMPTY


def test_branches_share_what_they_start_from() -> None:
    start = of("ab")
    one, other = start.append(of("c").items), start.append(of("d").items)
    assert (ids(one), ids(other), ids(start)) == ("abc", "abd", "ab")
    assert one.parent is other.parent is start


def test_sizes() -> None:
    item = StoredItem("msg_ä", b"x" * 1000)
    assert item.size_bytes == sys.getsizeof("msg_ä") + sys.getsizeof(b"x" * 1000) + ITEM_OVERHEAD_BYTES
    once = EMPTY.append([item])
    assert once.size_bytes == LINK_OVERHEAD_BYTES + item.size_bytes
    assert once.append([item, item]).size_bytes == 2 * LINK_OVERHEAD_BYTES + 3 * item.size_bytes
    assert EMPTY.size_bytes == 0


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=6), st.sampled_from("abc"))
def test_without(appended: list[str], removed: str) -> None:
    transcript = of(*appended)
    result = transcript.without(removed)
    assert ids(result) == ids(transcript).replace(removed, "")
    assert ids(transcript) == "".join(appended)  # unchanged
    assert set(result.all_items()) <= set(transcript.all_items())  # the very same items
    untouched = 0
    while untouched < len(appended) and removed not in appended[untouched]:
        untouched += 1
    assert list(transcript.links())[::-1][:untouched] == list(result.links())[::-1][:untouched]
    assert (result is transcript) == (removed not in "".join(appended))


def test_items_and_transcripts_are_compared_by_identity() -> None:
    assert StoredItem("a", b"{}") != StoredItem("a", b"{}")
    assert of("a") != of("a")
    assert len({of("a"), of("a")}) == 2


@pytest.mark.parametrize("field", Transcript.__struct_fields__)
def test_nothing_changes_a_transcript(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(of("a"), field, None)


def test_a_chain_longer_than_any_stack() -> None:
    transcript = EMPTY
    for _ in range(50_000):
        transcript = transcript.append([StoredItem("a", b"{}")])
    assert len(transcript.all_items()) == 50_000
    assert repr(transcript) == f"<Transcript of 50000 items, {transcript.size_bytes} bytes>"
    gc.collect()
    del transcript  # goes link by link, without recursion
