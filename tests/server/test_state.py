"""Stored responses over HTTP: what is got is what was sent, until it is deleted, evicted or another's."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from support.known_ids import known_ids
from support.served import ServerClient, body_of, checked_error, http_client, serving_script
from support.stored_state import StoredState
from support.wire import check_stream, validate_response

from mlxcel_trio.testing.script import ScriptRow
from mlxcel_trio.testing.sse import SseReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.published import Json
    from support.served import Served

ROWS = (
    ScriptRow(when="think", emit=("<think>", "hm", "</think>", "\n\n", "Done")),
    ScriptRow(when="fail", emit=("a", "b"), then="raise"),
    ScriptRow(when="cut", emit=("a", "b"), then="length"),
    ScriptRow(when="emoji", emit_bytes=("f09f", "9b", "b5")),
    ScriptRow(when="silence"),
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(emit=("Hel", "lo")),
)
KINDS: dict[str, Json] = {
    "text": {},
    "reasoning": {"input": "think", "reasoning": {"effort": "low"}},
    "a length stop": {"input": "cut"},
    "nothing": {"input": "silence"},
    "a character of several tokens": {"input": "emoji"},
    "log probabilities": {"top_logprobs": 2},
    "what is echoed": {
        "instructions": 'Say "hello" \N{MOTOR SCOOTER}\n',
        "metadata": {"a": "b"},
        "user": "u",
        "temperature": 0.1,
        "max_output_tokens": 10,
        "tools": [],
    },
    "a conversation": {"conversation": "conv_1"},
}
SECRET: Json = {"type": "message", "role": "user", "content": "a secret"}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving_script(*ROWS, parallel=2) as running:
        yield running


@pytest.fixture
def state(served: Served) -> StoredState:
    return StoredState(served)


async def raw_stream(served: Served, **fields: Any) -> tuple[list[Json], bytes]:
    """The checked events of a stream, and the bytes of the last one."""
    reply = await served.client.post("/v1/responses", json=body_of(fields | {"stream": True}))
    *frames, done = SseReader().feed(reply.content)
    assert done.data == "[DONE]"
    events = [json.loads(frame.data) for frame in frames]
    check_stream(events)
    return events, frames[-1].data.encode()


# One object in all places


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS.keys())
async def test_get_is_the_json_body_byte_for_byte(served: Served, fields: Json) -> None:
    reply = await served.client.post("/v1/responses", json=body_of(fields))
    assert reply.status_code == 200, reply.text
    validate_response(reply.json())
    path = f"/v1/responses/{reply.json()['id']}"
    got = await served.client.get(path)
    assert got.content == reply.content
    assert got.headers["content-type"] == reply.headers["content-type"] == "application/json"
    assert (await served.client.get(path.removeprefix("/v1"))).content == got.content
    assert (await served.client.post(f"{path}/cancel")).content == got.content


@pytest.mark.parametrize(
    "fields", [*KINDS.values(), {"input": "fail"}], ids=[*KINDS.keys(), "a failure in the stream"]
)
async def test_get_is_the_response_of_the_terminal_event_byte_for_byte(served: Served, fields: Json) -> None:
    events, last = await raw_stream(served, **fields)
    response = events[-1]["response"]
    got = await served.client.get(f"/v1/responses/{response['id']}")
    assert got.json() == response
    assert b'"response":' + got.content in last
    assert events[0]["response"]["id"] == response["id"]


async def test_a_response_is_stored_before_its_end_is_told(served: Served, state: StoredState) -> None:
    """The client asks as soon as it reads the terminal event, on another connection."""
    for _ in range(10):
        async with served.open_stream() as events:
            final = (await events.next("response.completed"))["response"]
            assert await state.response(final["id"]) == final


# Deleting


async def test_a_deleted_response_is_unknown(served: Served, state: StoredState) -> None:
    kept, response = await served.create(), await served.create()
    await state.delete(response["id"])
    await state.assert_unknown(response["id"])
    assert await state.response(kept["id"]) == kept


async def test_delete_works_without_the_version_too(served: Served, state: StoredState) -> None:
    response = await served.create()
    reply = await served.client.delete(f"/responses/{response['id']}")
    assert (reply.status_code, reply.json()["deleted"]) == (200, True)
    await state.assert_unknown(response["id"])


@pytest.mark.parametrize(
    "response_id", ["resp_1", "x", "resp_" + "0" * 48, "../models", "\u00fc", "\n", "%", "a" * 4000, "null"]
)
async def test_an_id_that_never_was(state: StoredState, response_id: str) -> None:
    path = f"/v1/responses/{quote(response_id, safe='')}"
    for method, target in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
        error = await state.refusal(method, target, status=404)
        assert error["code"] in ("response_not_found", None)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_store_false_stores_nothing(served: Served, state: StoredState, stream: bool) -> None:
    fields = {"store": False, "conversation": "conv_1"}
    response = (await served.stream(**fields))[-1]["response"] if stream else await served.create(**fields)
    assert response["store"] is False
    await state.assert_unknown(response["id"])
    await state.assert_no_conversation("conv_1")


async def test_an_http_error_stores_nothing() -> None:
    with known_ids() as ids:
        async with serving_script(*ROWS) as served:
            assert (await served.refusal(input="fail", conversation="conv_1")).status_code == 500
            (response_id,) = ids
            state = StoredState(served)
            await state.assert_unknown(response_id)
            await state.assert_no_conversation("conv_1")


# In flight


async def test_a_response_in_flight(served: Served, state: StoredState) -> None:
    fields = {"input": "endless", "metadata": {"a": "b"}}
    async with served.open_stream(**fields) as events:
        response = (await events.next("response.created"))["response"]
        await events.next("response.output_text.delta")
        path = f"/v1/responses/{response['id']}"
        assert await state.response(response["id"]) == response
        (item,) = (await state.input_items(response["id"]))["data"]
        assert item["content"] == [{"type": "input_text", "text": "endless"}]
        error = await state.refusal("DELETE", path)
        assert "has not finished (status: in_progress)" in error["message"]
        error = await state.refusal(
            "POST", "/v1/responses", body_of({"previous_response_id": response["id"]})
        )
        assert error["message"] == (
            f"previous response '{response['id']}' has not finished (status: in_progress)"
        )
        assert error["param"] == "previous_response_id"
        await events.next("response.output_text.delta")


async def test_what_is_not_stored_is_not_found_in_flight_either(served: Served, state: StoredState) -> None:
    async with served.open_stream(input="endless", store=False) as events:
        response = (await events.next("response.created"))["response"]
        path = f"/v1/responses/{response['id']}"
        for method, target in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")):
            error = await state.refusal(method, target, status=404)
            assert error["code"] == "response_not_found"
        error = await state.refusal(
            "POST", "/v1/responses", body_of({"previous_response_id": response["id"]})
        )
        assert error["code"] == "previous_response_not_found"
        await events.next("response.output_text.delta")


# Limits


async def test_without_room_everything_is_forgotten_at_once() -> None:
    async with serving_script(*ROWS, responses_store_max_bytes=0, conversation_store_max_bytes=0) as served:
        state = StoredState(served)
        response = await served.create(conversation="conv_1")
        assert response["store"] is True
        streamed = (await served.stream())[-1]["response"]
        for response_id in (response["id"], streamed["id"]):
            await state.assert_unknown(response_id)
        await state.assert_no_conversation("conv_1")
        created = await state.create_conversation(metadata={"a": "b"})
        await state.assert_no_conversation(created["id"])
        async with served.open_stream(input="endless") as events:
            running = (await events.next("response.created"))["response"]
            assert await state.response(running["id"]) == running
            cancelled = await state.cancel(running["id"])
            assert await events.rest() == cancelled
        await state.assert_unknown(running["id"])


async def test_the_least_recently_used_response_goes_first() -> None:
    async with serving_script(*ROWS, responses_store_max_entries=2) as served:
        state = StoredState(served)
        first, second = await served.create(), await served.create()
        assert await state.response(first["id"]) == first
        third = await served.create(previous_response_id=second["id"])
        await state.assert_unknown(first["id"])
        fourth = await served.create(previous_response_id=third["id"])
        await state.assert_unknown(second["id"])
        assert await state.response(fourth["id"]) == fourth
        assert served.engine.prompts()[-1].count("Hello") == 2, "a child outlives its parents"


# Owners


@asynccontextmanager
async def with_key(served: Served, key: str) -> AsyncIterator[ServerClient]:
    """A client that sends this key."""
    async with http_client(served.url) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        yield ServerClient(served.url, client)


async def test_two_api_keys_see_none_of_each_others() -> None:
    async with (
        serving_script(*ROWS, api_keys=("ann", "bob")) as served,
        with_key(served, "ann") as ann,
        with_key(served, "bob") as bob,
    ):
        for one, other in ((ann, bob), (bob, ann)):
            mine, theirs = StoredState(one), StoredState(other)
            response = await one.create(input=[SECRET])
            conversation = await mine.create_conversation(items=[SECRET])
            await theirs.assert_unknown(response["id"])
            await theirs.assert_no_conversation(conversation["id"])
            reference = [{"type": "item_reference", "id": response["output"][0]["id"]}]
            error = checked_error(await other.refusal(input=reference))
            assert (error["code"], error["param"]) == ("item_not_found", "input[0].id")
            assert await mine.response(response["id"]) == response
            await one.create(previous_response_id=response["id"])
            assert "a secret" in served.engine.prompts()[-1]
            assert await mine.conversation(conversation["id"]) == conversation


async def test_conversations_of_one_name_are_two_for_two_keys() -> None:
    async with (
        serving_script(*ROWS, api_keys=("ann", "bob")) as served,
        with_key(served, "ann") as ann,
        with_key(served, "bob") as bob,
    ):
        await ann.create(input="I am Ann.", conversation="diary")
        await bob.create(input="I am Bob.", conversation="diary")
        await ann.create(input="Who am I?", conversation="diary")
        assert "Bob" not in served.engine.prompts()[-1]
        assert len(await StoredState(ann).all_items("diary")) == 4
        await StoredState(ann).delete_conversation("diary")
        assert len(await StoredState(bob).all_items("diary")) == 2


async def test_another_key_cannot_cancel() -> None:
    async with (
        serving_script(*ROWS, api_keys=("ann", "bob")) as served,
        with_key(served, "ann") as ann,
        with_key(served, "bob") as bob,
    ):
        for store in (True, False):
            async with ann.open_stream(input="endless", store=store) as events:
                response_id = (await events.next("response.created"))["response"]["id"]
                await StoredState(bob).assert_unknown(response_id)
                await events.next("response.output_text.delta")
                assert (await StoredState(ann).cancel(response_id))["status"] == "cancelled"
                await events.rest()
