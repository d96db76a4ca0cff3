"""The bodies of conversations: how many items, which items, and metadata."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mlxcel_trio.core.validation.conversations import MAX_NEW_ITEMS, read_metadata, read_new_items
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.items import InputItem

USER = {"role": "user", "content": "hi"}


def items(*values: dict[str, Any]) -> list[InputItem]:
    return msgspec.convert(values, list[InputItem])


def test_items_get_their_type() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    reference = {"type": "item_reference", "id": "msg_1"}
    read = read_new_items(items(USER, call, reference))
    assert [item.type for item in read] == ["message", "function_call", "item_reference"]


@pytest.mark.parametrize("required", [False, True])
def test_no_items(required: bool) -> None:
    assert read_new_items([], required=required) == ()


def test_absent_items() -> None:
    assert read_new_items(None) == ()
    with pytest.raises(InvalidRequestError, match="'items' is missing") as caught:
        read_new_items(None, required=True)
    assert caught.value.param == "items"


def test_number_of_items() -> None:
    most = items(*[USER] * MAX_NEW_ITEMS)
    assert len(read_new_items(most)) == MAX_NEW_ITEMS == 20
    with pytest.raises(InvalidRequestError, match="21 are too many") as caught:
        read_new_items(most + items(USER))
    assert caught.value.param == "items"


@pytest.mark.parametrize(
    ("item", "param", "code"),
    [
        ({}, "type", None),
        ({"type": "web_search_call"}, "type", None),
        ({"role": "tool", "content": "x"}, "role", None),
        ({"role": "user"}, "content", None),
        ({"role": "user", "content": [{"type": "input_image"}]}, "content[0].type", "unsupported_media"),
        ({"type": "item_reference"}, "id", None),
        (USER | {"status": "done"}, "status", None),
    ],
    ids=repr,
)
def test_a_bad_item_is_named_by_its_place(item: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_new_items(items(USER, item))
    assert (caught.value.param, caught.value.code) == (f"items[1].{param}", code)
    assert f"items[1].{param}" in caught.value.message


@pytest.mark.parametrize("metadata", [{}, {"k" * 64: "v" * 512}, {str(n): "" for n in range(16)}])
@pytest.mark.parametrize("required", [False, True])
def test_metadata(metadata: dict[str, str], required: bool) -> None:
    assert read_metadata(metadata, required=required) == metadata


@pytest.mark.parametrize("metadata", [{"k" * 65: "v"}, {"k": "v" * 513}, {str(n): "" for n in range(17)}])
@pytest.mark.parametrize("required", [False, True])
def test_metadata_over_its_limits(metadata: dict[str, str], required: bool) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_metadata(metadata, required=required)
    assert caught.value.param == "metadata"
    assert len(caught.value.message) < 250


def test_absent_metadata() -> None:
    assert read_metadata(None) == {}
    with pytest.raises(InvalidRequestError, match="'metadata' is missing") as caught:
        read_metadata(None, required=True)
    assert caught.value.param == "metadata"


def test_a_compaction_cannot_be_rendered_yet() -> None:
    compaction = {"type": "compaction", "encrypted_content": "e30"}
    with pytest.raises(InvalidRequestError, match="not supported by this version yet") as caught:
        read_new_items(items(USER, compaction))
    assert caught.value.param == "items[1].type"
