"""Cancelling a response from another connection, and clients that vanish."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.known_ids import known_ids
from support.served import body_of, http_client, serving_script, text_of
from support.stored_state import StoredState
from support.wire import validate_response

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.http_server import Client
    from support.published import Json
    from support.served import Served

ROWS = (
    ScriptRow(when="fail", emit=("a", "b"), then="raise"),
    ScriptRow(when="cut", emit=("a", "b"), then="length"),
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(when="brief", emit=("a", "b", "c"), delay=0.002),
    ScriptRow(when="prefill", prefill_delay=3600),
    ScriptRow(emit=("Hel", "lo")),
)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving_script(*ROWS, parallel=2) as running:
        yield running


@pytest.fixture
def state(served: Served) -> StoredState:
    return StoredState(served)


async def test_cancel_ends_a_running_stream(served: Served, state: StoredState) -> None:
    async with served.open_stream(input="endless") as events:
        response_id = (await events.next("response.created"))["response"]["id"]
        for _ in range(3):
            await events.next("response.output_text.delta")
        cancelled = await state.cancel(response_id)
        final = await events.rest()
    assert events.received[-1]["type"] == "response.incomplete"
    assert final == cancelled
    assert final["status"] == "cancelled"
    (message,) = final["output"]
    assert message["status"] == "incomplete"
    assert text_of(final).startswith("la la la ")
    assert final["usage"]["output_tokens"] == len(text_of(final)) // len("la ")
    assert final["usage"]["input_tokens"] > 0
    await served.idle()
    assert max(served.engine.removal_lags()) <= 1
    assert await state.response(response_id) == final
    assert await state.cancel(response_id) == final
    await state.delete(response_id)
    await state.assert_unknown(response_id)


async def test_cancel_ends_a_running_json_request() -> None:
    replies = []

    async def create(served: Served) -> None:
        replies.append(await served.client.post("/v1/responses", json=body_of({"input": "endless"})))

    with known_ids() as ids:
        async with serving_script(*ROWS) as served, http_client(served.url) as another:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(create, served)
                await served.until_true(lambda now: now["sampled_tokens"] >= 3)
                (response_id,) = ids
                cancelled = await another.post(f"/v1/responses/{response_id}/cancel")
            (reply,) = replies
            assert reply.status_code == cancelled.status_code == 200
            validate_response(reply.json())
            assert reply.content == cancelled.content
            assert reply.json()["status"] == "cancelled"
            assert text_of(reply.json()).startswith("la la ")
            assert (await another.get(f"/v1/responses/{response_id}")).content == reply.content


async def test_cancel_in_prefill(served: Served, state: StoredState) -> None:
    async with served.open_stream(input="prefill") as events:
        response_id = (await events.next("response.in_progress"))["response"]["id"]
        await served.until(rows=1)
        cancelled = await state.cancel(response_id)
        assert await events.rest() == cancelled
    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    assert cancelled["usage"]["input_tokens"] > 0
    assert cancelled["usage"]["output_tokens"] == 0
    assert await state.response(response_id) == cancelled


async def test_cancel_in_the_queue() -> None:
    async with serving_script(*ROWS, parallel=1) as served, served.open_stream(input="endless"):
        state = StoredState(served)
        await served.until(rows=1)
        async with served.open_stream() as waiting:
            response_id = (await waiting.next("response.in_progress"))["response"]["id"]
            cancelled = await state.cancel(response_id)
            assert await waiting.rest() == cancelled
        await served.until(running=1, waiting=0)
        assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
        assert cancelled["usage"]["total_tokens"] == 0
        assert await state.response(response_id) == cancelled
        assert len(served.engine.prompts()) == 1


async def test_cancel_leaves_what_has_ended(served: Served, state: StoredState) -> None:
    for fields in ({}, {"input": "cut"}):
        response = await served.create(**fields)
        assert await state.cancel(response["id"]) == response
    failed = (await served.stream(input="fail"))[-1]["response"]
    assert await state.cancel(failed["id"]) == failed


async def test_what_is_not_stored_can_be_cancelled_while_it_runs(served: Served, state: StoredState) -> None:
    async with served.open_stream(input="endless", store=False) as events:
        response_id = (await events.next("response.created"))["response"]["id"]
        await events.next("response.output_text.delta")
        cancelled = await state.cancel(response_id)
        assert await events.rest() == cancelled
    await state.assert_unknown(response_id)


async def test_many_cancels_at_once_agree(served: Served, state: StoredState) -> None:
    answers: list[Json] = []

    async def cancel(response_id: str) -> None:
        answers.append(await state.cancel(response_id))

    async with served.open_stream(input="endless") as events:
        response_id = (await events.next("response.created"))["response"]["id"]
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(cancel, response_id)
        final = await events.rest()
    assert answers == [final] * 8


async def test_cancel_racing_completion_gives_one_answer_to_all(served: Served, state: StoredState) -> None:
    answers: list[Json] = []

    async def cancel(response_id: str, pause: int) -> None:
        for _ in range(pause):
            await trio.lowlevel.checkpoint()
        answers.append(await state.cancel(response_id))

    for pause in range(20):
        async with served.open_stream(input="brief") as events, trio.open_nursery() as nursery:
            response_id = (await events.next("response.created"))["response"]["id"]
            nursery.start_soon(cancel, response_id, pause)
            final = await events.rest()
        assert answers.pop() == final
        assert final["status"] in ("completed", "cancelled")
        assert await state.response(response_id) == await state.cancel(response_id) == final


async def test_a_neighbour_does_not_notice_a_cancel(served: Served, state: StoredState) -> None:
    async with served.open_stream(input="endless") as neighbour:
        await neighbour.next("response.output_text.delta")
        async with served.open_stream(input="endless") as events:
            response_id = (await events.next("response.created"))["response"]["id"]
            await served.until(rows=2)
            await state.cancel(response_id)
            await events.rest()
        for _ in range(3):
            await neighbour.next("response.output_text.delta")


# Clients that vanish


async def close(client: Client) -> None:
    await client.stream.aclose()


async def reset(client: Client) -> None:
    await client.reset()


@pytest.mark.parametrize("leave", [close, reset])
@pytest.mark.parametrize("text", ["endless", "prefill"])
async def test_a_vanished_client_stores_nothing(
    served: Served, state: StoredState, leave: Any, text: str
) -> None:
    async with served.open_stream(input=text, conversation="conv_1") as events:
        response_id = (await events.next("response.in_progress"))["response"]["id"]
        if text == "endless":
            await events.next("response.output_text.delta")
        await served.until(rows=1)
        await leave(events.client)
        await served.idle()
        await state.assert_unknown(response_id)
        await state.assert_no_conversation("conv_1")


async def test_a_vanished_json_client_stores_nothing() -> None:
    with known_ids() as ids:
        async with serving_script(*ROWS) as served:
            async with served.connect() as client:
                body = json.dumps(body_of({"input": "endless", "conversation": "conv_1"})).encode()
                await client.send("POST", "/v1/responses", body=body)
                await served.until_true(lambda now: now["sampled_tokens"] >= 3)
            await served.idle()
            (response_id,) = ids
            state = StoredState(served)
            await state.assert_unknown(response_id)
            await state.assert_no_conversation("conv_1")
