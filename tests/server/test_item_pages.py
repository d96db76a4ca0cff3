"""Lists of items over HTTP, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.served import serving_script
from support.stored_state import CALL, StoredState, said, user

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.published import Json
    from support.served import Served

    Say = Callable[..., Awaitable[Json]]

ROWS = (ScriptRow(emit=("ok",)),)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving_script(*ROWS) as running:
        yield running


@pytest.fixture
def state(served: Served) -> StoredState:
    return StoredState(served)


ITEMS = [f"item {number}" for number in range(25)]
KEPT_IN = ["a response", "a conversation"]


async def pages(served: Served, kept_in: str) -> str:
    """The path under which ``ITEMS`` are listed."""
    if kept_in == "a response":
        response = await served.create(input=[user(text) for text in ITEMS])
        return f"/v1/responses/{response['id']}/input_items"
    state = StoredState(served)
    begun = await state.create_conversation(items=[user(text) for text in ITEMS[:20]])
    await state.add_items(begun["id"], *[user(text) for text in ITEMS[20:]])
    return f"/v1/conversations/{begun['id']}/items"


async def page(served: Served, path: str, **query: Any) -> Json:
    state = StoredState(served)
    list_page = state.input_items if path.startswith("/v1/responses") else state.items
    return await list_page(path.split("/")[3], **query)


def texts(listed: Json) -> list[str]:
    return [text.removeprefix("user: ") for text in said(listed["data"])]


@pytest.mark.parametrize("kept_in", KEPT_IN)
async def test_the_newest_twenty_come_first(served: Served, kept_in: str) -> None:
    path = await pages(served, kept_in)
    listed = await page(served, path)
    assert texts(listed) == ITEMS[:4:-1]
    assert listed["has_more"] is True
    rest = await page(served, path, after=listed["last_id"])
    assert texts(rest) == ITEMS[4::-1]
    assert rest["has_more"] is False
    assert texts(await page(served, path, after=rest["last_id"])) == []


@pytest.mark.parametrize("kept_in", KEPT_IN)
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 7, 25, 100])
async def test_pages_add_up(served: Served, kept_in: str, order: str, limit: int) -> None:
    path = await pages(served, kept_in)
    collected: list[str] = []
    after: dict[str, str] = {}
    more = True
    while more:
        listed = await page(served, path, order=order, limit=limit, **after)
        collected += texts(listed)
        more = listed["has_more"]
        assert len(listed["data"]) == limit or not more
        after = {"after": listed["last_id"]}
    assert collected == (ITEMS if order == "asc" else ITEMS[::-1])


@pytest.mark.parametrize("kept_in", KEPT_IN)
@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ({"limit": 0}, "limit", None),
        ({"limit": 101}, "limit", None),
        ({"limit": -1}, "limit", None),
        ({"limit": "ten"}, "limit", None),
        ({"limit": "1.5"}, "limit", None),
        ({"limit": ""}, "limit", None),
        ({"limit": "9" * 5000}, "limit", None),
        ({"order": "newest"}, "order", None),
        ({"order": ""}, "order", None),
        ({"after": "msg_1"}, "after", "item_not_found"),
        ({"after": ""}, "after", "item_not_found"),
        ({"after": "\n\u00fc"}, "after", "item_not_found"),
    ],
)
async def test_a_bad_page_is_refused(
    served: Served, kept_in: str, query: dict[str, Any], param: str, code: str | None
) -> None:
    path = await pages(served, kept_in)
    error = await StoredState(served).refusal("GET", path, **query)
    assert (error["param"], error["code"]) == (param, code)


async def test_input_items_are_those_of_the_request_alone(served: Served, state: StoredState) -> None:
    first = await served.create(input="one", instructions="Be terse.")
    second = await served.create(input=[user("two"), CALL], previous_response_id=first["id"])
    third = await served.create(input="three", conversation="c")
    for response, expected in ((first, ["message"]), (second, ["function_call", "message"])):
        listed = await state.input_items(response["id"])
        assert [item["type"] for item in listed["data"]] == expected
        assert await state.input_items(response["id"]) == listed, "ids are stable"
    assert said((await state.input_items(third["id"]))["data"]) == ["user: three"]


async def test_items_keep_what_clients_said(served: Served, state: StoredState) -> None:
    response = await served.create(
        input=[
            {"id": "msg_mine", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"id": "fc_mine", **CALL},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
    )
    message, call, refusal = (await state.input_items(response["id"], order="asc"))["data"]
    assert message["id"] == "msg_mine"
    assert call == CALL | {"status": "completed"}
    assert refusal["content"] == [{"type": "refusal", "refusal": "no"}]
