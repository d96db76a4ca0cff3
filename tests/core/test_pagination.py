"""Pages of items: order, limits, where a page begins, and parameters that are wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.core.pagination import PageQuery, page_of, read_page_query
from mlxcel_trio.core.transcript import StoredItem
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import encode


def items(*ids: str) -> tuple[StoredItem, ...]:
    return tuple(StoredItem(item_id, json.dumps({"id": item_id}).encode()) for item_id in ids)


def listed(ids: str, query: PageQuery) -> tuple[str, bool]:
    """The ids on a page over items with one-letter ids, and whether there are more."""
    page = json.loads(encode(page_of(items(*ids), query)))
    found = "".join(item["id"] for item in page["data"])
    assert (page["first_id"], page["last_id"]) == (found[:1], found[-1:])
    assert page["object"] == "list"
    return found, page["has_more"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (PageQuery(), ("edcba", False)),
        (PageQuery("asc"), ("abcde", False)),
        (PageQuery(limit=5), ("edcba", False)),
        (PageQuery(limit=4), ("edcb", True)),
        (PageQuery("asc", 2), ("ab", True)),
        (PageQuery("asc", 2, "b"), ("cd", True)),
        (PageQuery("asc", 2, "c"), ("de", False)),
        (PageQuery("asc", 2, "d"), ("e", False)),
        (PageQuery("asc", 2, "e"), ("", False)),
        (PageQuery("desc", 2, "d"), ("cb", True)),
        (PageQuery("desc", 2, "a"), ("", False)),
    ],
)
def test_pages(query: PageQuery, expected: tuple[str, bool]) -> None:
    assert listed("abcde", query) == expected


def test_a_list_without_items() -> None:
    page = encode(page_of((), PageQuery()))
    assert page == b'{"object":"list","data":[],"first_id":"","last_id":"","has_more":false}'


def test_by_default_the_last_twenty() -> None:
    ids = "abcdefghijklmnopqrstuvwxyz"
    assert listed(ids, read_page_query({})) == (ids[:5:-1], True)


@given(st.text("abcd", max_size=12), st.sampled_from(["asc", "desc"]), st.integers(1, 4))
def test_the_pages_together_list_every_id_once(ids: str, order: str, limit: int) -> None:
    parameters = {"order": order, "limit": str(limit)}
    seen, more = "", True
    while more:
        page, more = listed(ids, read_page_query(parameters))
        assert len(page) == limit or not more
        seen += page
        parameters["after"] = page[-1:]
    newest_first = "".join(dict.fromkeys(reversed(ids)))
    assert seen == (newest_first if order == "desc" else newest_first[::-1])


def test_of_items_with_one_id_the_latest_is_listed() -> None:
    older, newer = StoredItem("a", b"1"), StoredItem("a", b"2")
    assert encode(page_of([older, newer], PageQuery())).count(b"[2]") == 1


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, PageQuery("desc", 20, None)),
        ({"order": "asc", "limit": "1", "after": "msg_1"}, PageQuery("asc", 1, "msg_1")),
        ({"limit": "100", "include": "x"}, PageQuery("desc", 100, None)),
        ({"limit": "007"}, PageQuery("desc", 7, None)),
    ],
)
def test_parameters(parameters: dict[str, str], expected: PageQuery) -> None:
    assert read_page_query(parameters) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("order", value) for value in ["", "sideways", "ASC", "asc "]]
    + [
        ("limit", value)
        for value in ["", "0", "000", "101", "-1", "+1", "1.0", " 1", "1_0", "ten", "٣", "9" * 9999]
    ],
)
def test_bad_parameters(name: str, value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_page_query({name: value})
    assert caught.value.param == name
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("after", ["", "msg_unknown", "x" * 9999])
def test_a_page_behind_an_unknown_item(after: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        page_of(items("a", "b"), PageQuery(after=after))
    assert (caught.value.param, caught.value.code) == ("after", "item_not_found")
    assert len(caught.value.message) < 250
