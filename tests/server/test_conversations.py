"""Conversations over HTTP: what the model is shown, what is kept, and what clients can change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from support.served import serving_script
from support.stored_state import CALL, CALL_OUTPUT, DIALOGUE_ROWS, StoredState, answer, said, turns, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.published import Json
    from support.served import Served

    Say = Callable[..., Awaitable[Json]]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving_script(*DIALOGUE_ROWS) as running:
        yield running


@pytest.fixture
def state(served: Served) -> StoredState:
    return StoredState(served)


@pytest.fixture(params=[False, True], ids=["json", "stream"])
def say(request: pytest.FixtureRequest, served: Served) -> Say:
    """Creates a response one way and the other; gives the final object."""
    return partial(answer, served, stream=request.param)


async def test_turns_of_a_conversation(served: Served, state: StoredState, say: Say) -> None:
    first = await say("one", conversation="chat-1")
    await say("two", conversation={"id": "chat-1"})
    await say("three", conversation="chat-1")
    assert turns(served) == ["user: one", "assistant: eins", "user: two", "assistant: zwei", "user: three"]
    assert first["conversation"] == {"id": "chat-1"}
    assert said(await state.all_items("chat-1")) == [
        "user: one",
        "assistant: eins",
        "user: two",
        "assistant: zwei",
        "user: three",
        "assistant: drei",
    ]
    assert (await state.conversation("chat-1"))["metadata"] == {}


async def test_a_conversation_that_was_created(served: Served, state: StoredState, say: Say) -> None:
    begun = await state.create_conversation(
        metadata={"topic": "boats"}, items=[{"role": "developer", "content": "Be terse."}, user("ahoy")]
    )
    assert begun["id"].startswith("conv_")
    assert begun["metadata"] == {"topic": "boats"}
    assert await state.conversation(begun["id"]) == begun
    await say("one", conversation=begun["id"])
    assert turns(served) == ["system: Be terse.", "user: ahoy\n\none"]
    assert await state.conversation(begun["id"]) == begun, "a turn does not change the object"


async def test_changing_and_deleting_a_conversation(served: Served, state: StoredState) -> None:
    begun = await state.create_conversation()
    assert begun["metadata"] == {}
    changed = await state.update_conversation(begun["id"], {"a": "b"})
    assert changed == begun | {"metadata": {"a": "b"}}
    assert await state.conversation(begun["id"]) == changed
    assert (await state.update_conversation(begun["id"], {}))["metadata"] == {}
    response = await served.create(conversation=begun["id"])
    await state.delete_conversation(begun["id"])
    await state.assert_no_conversation(begun["id"])
    assert await state.response(response["id"]) == response
    await served.create(input="one", conversation=begun["id"])
    assert turns(served) == ["user: one"], "an id that is free starts an empty transcript"


async def test_items_of_a_conversation(served: Served, state: StoredState) -> None:
    begun = await state.create_conversation()
    added = await state.add_items(begun["id"], user("where?"), CALL, CALL_OUTPUT)
    assert [item["type"] for item in added] == ["message", "function_call", "function_call_output"]
    assert await state.all_items(begun["id"]) == added
    for item in added:
        assert await state.item(begun["id"], item["id"]) == item
    assert await state.delete_item(begun["id"], added[0]["id"]) == begun
    assert await state.all_items(begun["id"]) == added[1:]
    for method in ("GET", "DELETE"):
        path = f"/v1/conversations/{begun['id']}/items/{added[0]['id']}"
        error = await state.refusal(method, path, status=404)
        assert (error["code"], error["param"]) == ("item_not_found", None)
    await served.create(input="two", conversation=begun["id"])
    assert "where?" not in served.engine.prompts()[-1]
    assert "found it" in served.engine.prompts()[-1]


async def test_which_turns_are_appended(served: Served, state: StoredState) -> None:
    begun = (await state.create_conversation())["id"]
    await served.create(input="kept one", conversation=begun)
    await served.create(input="kept: cut", conversation=begun)
    await served.create(input="not stored", conversation=begun, store=False)
    await served.stream(input="fail", conversation=begun)
    await served.refusal(input="fail", conversation=begun)
    await served.refusal(input="too hot", conversation=begun, temperature=3)
    async with served.open_stream(input="endless", conversation=begun) as events:
        await events.next("response.output_text.delta")
        await state.cancel(events.received[0]["response"]["id"])
        await events.rest()
    assert said(await state.all_items(begun)) == [
        "user: kept one",
        "assistant: eins",
        "user: kept: cut",
        "assistant: ab",
    ]


async def test_items_are_the_same_wherever_they_are_listed(
    served: Served, state: StoredState, say: Say
) -> None:
    first = await say("think", conversation="c")
    listed = await state.all_items("c")
    assert [item["id"] for item in listed[1:]] == [item["id"] for item in first["output"]]
    assert listed[1:] == first["output"]
    assert listed[:1] == (await state.input_items(first["id"]))["data"]
    assert [item["type"] for item in listed] == ["message", "reasoning", "message"]


@pytest.mark.parametrize("conversation", ["", "a b", "x" * 65, "\u00fc", "a/b", {"id": ""}, {"id": "a.b"}])
async def test_a_name_that_no_conversation_can_have(served: Served, conversation: str | Json) -> None:
    reply = await served.refusal(conversation=conversation)
    param = reply.json()["error"]["param"]
    assert param == ("conversation" if isinstance(conversation, str) else "conversation.id")


@pytest.mark.parametrize("conversation_id", ["conv_1", "\u00fc", "\n", "%", "a" * 4000])
async def test_an_id_that_never_was(state: StoredState, conversation_id: str) -> None:
    await state.assert_no_conversation(quote(conversation_id, safe=""))


async def test_an_item_that_never_was(state: StoredState) -> None:
    begun = await state.create_conversation(items=[user("hi")])
    for item_id in ("msg_1", "%0A", "a" * 4000):
        path = f"/v1/conversations/{begun['id']}/items/{item_id}"
        for method in ("GET", "DELETE"):
            error = await state.refusal(method, path, status=404)
            assert (error["code"], error["param"]) == ("item_not_found", None)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ("", {"metadata": {"k" * 65: "x"}}, "metadata"),
        ("", {"metadata": {"k": "x" * 513}}, "metadata"),
        ("", {"metadata": {"k": 1}}, "metadata"),
        ("", {"items": [user("x")] * 21}, "items"),
        ("", {"items": [{"role": "robot", "content": "x"}]}, "items[0].role"),
        ("", {"items": [user("x"), CALL_OUTPUT]}, "items[1].call_id"),
        ("", {"items": [{"type": "web_search_call"}]}, "items[0].type"),
        ("", {"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].id"),
        ("", {"items": "x"}, "items"),
        ("/{}", {}, "metadata"),
        ("/{}", {"metadata": {"k": "x" * 513}}, "metadata"),
        ("/{}/items", {}, "items"),
        ("/{}/items", {"items": [CALL, CALL]}, "items[1].call_id"),
        ("/{}/items", {"items": [user("x")] * 21}, "items"),
        ("/{}/items", {"items": [{"role": "user"}]}, "items[0].content"),
    ],
)
async def test_a_bad_conversation_changes_nothing(
    state: StoredState, path: str, body: Json, param: str
) -> None:
    begun = await state.create_conversation(metadata={"a": "b"}, items=[user("hi")])
    before = await state.all_items(begun["id"])
    error = await state.refusal("POST", f"/v1/conversations{path.format(begun['id'])}", body)
    assert (error["param"], error["code"]) in ((param, None), (param, "item_not_found"))
    assert await state.conversation(begun["id"]) == begun
    assert await state.all_items(begun["id"]) == before
