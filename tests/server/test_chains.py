"""Chains of responses and references to items: what the model is shown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from support.served import serving_script, text_of
from support.stored_state import (
    CALL,
    CALL_OUTPUT,
    DIALOGUE_ROWS,
    StoredState,
    answer,
    reference,
    said,
    turns,
    user,
)

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


async def test_a_chain_of_three_shows_every_turn_once(served: Served, say: Say) -> None:
    first = await say("one")
    second = await say("two", previous_response_id=first["id"])
    third = await say("three", previous_response_id=second["id"])
    assert turns(served) == ["user: one", "assistant: eins", "user: two", "assistant: zwei", "user: three"]
    assert [text_of(response) for response in (first, second, third)] == ["eins", "zwei", "drei"]
    assert [response["previous_response_id"] for response in (first, second, third)] == [
        None,
        first["id"],
        second["id"],
    ]


async def test_a_response_has_any_number_of_children(served: Served, say: Say) -> None:
    first = await say("one")
    for text in ("two", "three"):
        await say(text, previous_response_id=first["id"])
        assert turns(served) == ["user: one", "assistant: eins", f"user: {text}"]


async def test_a_child_outlives_its_deleted_parent(served: Served, state: StoredState, say: Say) -> None:
    first = await say("one")
    second = await say("two", previous_response_id=first["id"])
    await state.delete(first["id"])
    await say("three", previous_response_id=second["id"])
    assert turns(served) == ["user: one", "assistant: eins", "user: two", "assistant: zwei", "user: three"]


async def test_nothing_but_the_items_is_inherited(served: Served, say: Say) -> None:
    first = await say("one", instructions="Be terse.", metadata={"a": "b"}, temperature=0.1, user="me")
    second = await say("two", previous_response_id=first["id"])
    assert turns(served, 0)[0] == "system: Be terse."
    assert turns(served) == ["user: one", "assistant: eins", "user: two"]
    assert (second["instructions"], second["metadata"], second["temperature"]) == (None, {}, 1)
    await say("three", previous_response_id=second["id"], instructions="Be kind.")
    assert turns(served)[0] == "system: Be kind."


async def test_system_messages_of_the_past_stay(served: Served, say: Say) -> None:
    first = await say([{"role": "developer", "content": "Be terse."}, user("one")])
    await say("two", previous_response_id=first["id"])
    assert turns(served) == ["system: Be terse.", "user: one", "assistant: eins", "user: two"]


@pytest.mark.parametrize(
    ("text", "shown"), [("cut", "assistant: ab"), ("fail", "assistant: a"), ("think", "assistant: Done")]
)
async def test_every_end_can_be_continued(served: Served, text: str, shown: str) -> None:
    first = (await served.stream(input=text))[-1]["response"]
    await served.create(input="two", previous_response_id=first["id"])
    assert turns(served) == [f"user: {text}", shown, "user: two"]


async def test_a_cancelled_response_can_be_continued(served: Served, state: StoredState) -> None:
    async with served.open_stream(input="endless") as events:
        await events.next("response.output_text.delta")
        cancelled = await state.cancel(events.received[0]["response"]["id"])
        await events.rest()
    await served.create(input="two", previous_response_id=cancelled["id"])
    assert turns(served) == ["user: endless", f"assistant: {text_of(cancelled)}", "user: two"]


async def test_a_child_may_come_without_input(served: Served, say: Say) -> None:
    first = await say("one")
    second = await served.client.post(
        "/v1/responses", json={"model": "local", "previous_response_id": first["id"]}
    )
    assert second.status_code == 200
    assert turns(served) == ["user: one", "assistant: eins"]


async def test_what_is_sent_again_is_not_shown_again(served: Served, say: Say) -> None:
    """Some clients send their whole history beside the id; the server's ids tell what it knows already."""
    first = await say("one")
    await say([*first["output"], user("two")], previous_response_id=first["id"])
    assert turns(served) == ["user: one", "assistant: eins", "user: two"]


async def test_an_output_answers_a_call_of_the_past(served: Served, say: Say) -> None:
    first = await say([user("where?"), CALL])
    second = await say([CALL_OUTPUT], previous_response_id=first["id"])
    assert text_of(second) == "Good"
    reply = await served.refusal(input=[CALL_OUTPUT], previous_response_id=second["id"])
    assert reply.json()["error"]["param"] == "input[0].call_id"


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_an_unknown_parent_is_refused(served: Served, stream: bool) -> None:
    for unknown in ("resp_1", "", "x" * 5000, "\n"):
        reply = await served.refusal(previous_response_id=unknown, stream=stream)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["code"]) == (
            400,
            "previous_response_id",
            "previous_response_not_found",
        )
    assert not served.engine.prompts()


async def test_a_parent_and_a_conversation_are_one_too_many(served: Served) -> None:
    first = await served.create()
    reply = await served.refusal(previous_response_id=first["id"], conversation="c")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "conversation")


# References


async def test_a_reference_stands_for_its_item(served: Served, state: StoredState, say: Say) -> None:
    first = await say("one")
    (asked,) = (await state.input_items(first["id"]))["data"]
    (answered,) = first["output"]
    await say([reference(asked), reference(answered), user("two")])
    assert turns(served) == ["user: one", "assistant: eins", "user: two"]
    begun = await state.create_conversation(items=[user("ahoy"), reference(answered)])
    listed = await state.all_items(begun["id"])
    assert said(listed) == ["user: ahoy", "assistant: eins"]
    assert listed[1] == answered
    await say([reference(listed[0]), user("three")])
    assert turns(served) == ["user: ahoy\n\nthree"]


async def test_a_reference_to_the_history_adds_nothing(served: Served, say: Say) -> None:
    first = await say("one")
    await say([reference(first["output"][0]), user("two")], previous_response_id=first["id"])
    assert turns(served) == ["user: one", "assistant: eins", "user: two"]


async def test_a_reference_to_nothing_is_refused(served: Served, state: StoredState) -> None:
    first = await served.create(input="one")
    await state.delete(first["id"])
    for unknown in (first["output"][0], {"id": "msg_1"}, {"id": first["id"]}):
        reply = await served.refusal(input=[user("x"), reference(unknown)])
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == ("input[1].id", "item_not_found")
