"""Servers that keep nothing: what needs a store is refused by name, all else is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.served import body_of, serving_script, text_of
from support.stored_state import StoredState

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.published import Json
    from support.served import Served

ROWS = (ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01), ScriptRow(emit=("ok",)))
ITEM: Json = {"type": "message", "role": "user", "content": "hi"}

OF_RESPONSES = [
    ("GET", "/v1/responses/{}"),
    ("DELETE", "/v1/responses/{}"),
    ("POST", "/v1/responses/{}/cancel"),
    ("GET", "/v1/responses/{}/input_items"),
    ("GET", "/responses/{}"),
    ("DELETE", "/responses/{}"),
    ("POST", "/responses/{}/cancel"),
]
OF_CONVERSATIONS: list[tuple[str, str, Json | None]] = [
    ("POST", "/v1/conversations", {}),
    ("POST", "/v1/conversations", {"items": [ITEM]}),
    ("GET", "/v1/conversations/c", None),
    ("POST", "/v1/conversations/c", {"metadata": {}}),
    ("DELETE", "/v1/conversations/c", None),
    ("GET", "/v1/conversations/c/items", None),
    ("POST", "/v1/conversations/c/items", {"items": [ITEM]}),
    ("GET", "/v1/conversations/c/items/msg_1", None),
    ("DELETE", "/v1/conversations/c/items/msg_1", None),
]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server without either store."""
    async with serving_script(
        *ROWS, responses_store_max_entries=0, conversation_store_max_entries=0
    ) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("store", [None, True, False])
async def test_responses_say_that_they_are_not_stored(
    served: Served, stream: bool, store: bool | None
) -> None:
    fields: Json = {} if store is None else {"store": store}
    events = await served.stream(**fields) if stream else []
    response = events[-1]["response"] if stream else await served.create(**fields)
    assert response["store"] is False
    assert text_of(response) == "ok"


@pytest.mark.parametrize(("method", "path"), OF_RESPONSES)
async def test_nothing_is_found_by_its_id(served: Served, method: str, path: str) -> None:
    response = await served.create()
    error = await StoredState(served).refusal(method, path.format(response["id"]))
    assert (error["code"], error["param"]) == ("store_disabled", None)
    assert "--responses-store-max-entries" in error["message"]


async def test_not_even_what_is_running(served: Served) -> None:
    async with served.open_stream(input="endless") as events:
        response_id = (await events.next("response.created"))["response"]["id"]
        for method, path in OF_RESPONSES:
            error = await StoredState(served).refusal(method, path.format(response_id))
            assert error["code"] == "store_disabled"
        await events.next("response.output_text.delta")


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"previous_response_id": "resp_1", "stream": True},
        {"conversation": "c"},
        {"conversation": {"id": "c"}, "stream": True},
    ],
)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
async def test_nothing_can_be_continued(served: Served, fields: Json, path: str) -> None:
    error = await StoredState(served).refusal("POST", path, body_of(fields))
    assert (error["code"], error["param"]) == ("store_disabled", next(iter(fields)))
    assert not served.engine.prompts()


@pytest.mark.parametrize(("method", "path", "body"), OF_CONVERSATIONS)
async def test_there_are_no_conversations(served: Served, method: str, path: str, body: Json | None) -> None:
    error = await StoredState(served).refusal(method, path, body)
    assert (error["code"], error["param"]) == ("store_disabled", None)
    assert "--conversation-store-max-entries" in error["message"]


async def test_background_mode_is_refused(served: Served) -> None:
    reply = await served.refusal(background=True)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "background")


async def test_counting_needs_no_store(served: Served) -> None:
    response = await served.create()
    assert await StoredState(served).count() == response["usage"]["input_tokens"]


async def test_a_reference_finds_nothing(served: Served) -> None:
    response = await served.create()
    reply = await served.refusal(input=[{"type": "item_reference", "id": response["output"][0]["id"]}])
    assert reply.json()["error"]["code"] == "item_not_found"


async def test_responses_alone_can_be_disabled() -> None:
    async with serving_script(*ROWS, responses_store_max_entries=0) as served:
        state = StoredState(served)
        response = await served.create(conversation="c")
        assert response["store"] is False
        error = await state.refusal("GET", f"/v1/responses/{response['id']}")
        assert error["code"] == "store_disabled"
        begun = await state.create_conversation(items=[ITEM])
        assert len(await state.all_items(begun["id"])) == 1


async def test_conversations_alone_can_be_disabled() -> None:
    async with serving_script(*ROWS, conversation_store_max_entries=0) as served:
        response = await served.create()
        assert response["store"] is True
        assert await StoredState(served).response(response["id"]) == response
        assert (await served.refusal(conversation="c")).json()["error"]["code"] == "store_disabled"
        child = await served.create(previous_response_id=response["id"])
        assert child["previous_response_id"] == response["id"]
