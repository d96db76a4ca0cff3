"""Stored state through the OpenAI SDK for Python: responses by id, chains, conversations, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest
import trio
from openai import AsyncOpenAI, OpenAI
from support.served import Served, serving_script
from support.stored_state import check_items, turns
from support.wire import validate_response

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai.types.conversations import ConversationItem
    from openai.types.responses import Response, ResponseItem

ROWS = (
    ScriptRow(when="think", emit=("<think>", "hm", "</think>", "\n\n", "Done")),
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(when="one", emit=("eins",)),
    ScriptRow(when="two", emit=("zwei",)),
    ScriptRow(when="three", emit=("drei",)),
    ScriptRow(emit=("ok",)),
)
MANY: Any = [{"role": "user", "content": f"item {number}"} for number in range(25)]

# The SDK stops reading at [DONE] and leaves its generators to the garbage collector, which trio warns of.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2):ResourceWarning")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving_script(*ROWS) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="not-needed", max_retries=0) as opened:
        yield opened


def as_sent(response: Response) -> dict[str, Any]:
    """``response`` as it was before the SDK read it, which has to be valid."""
    read: dict[str, Any] = response.to_dict(mode="json", warnings=False)
    # The SDK reads times as floats.
    read |= {key: int(read[key]) for key in ("created_at", "completed_at") if read[key]}
    validate_response(read)
    return read


def item_text(item: ResponseItem | ConversationItem) -> str:
    """What a message says; the item has to be valid as it is listed."""
    check_items([item.to_dict(mode="json", warnings=False)])
    assert item.type == "message"
    assert item.content is not None
    return "".join(part.text for part in item.content if hasattr(part, "text"))


# Responses by id


async def test_retrieve_and_delete(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="local", input="think", metadata={"a": "b"})
    retrieved = await client.responses.retrieve(response.id)
    assert as_sent(retrieved) == as_sent(response)
    assert retrieved.output_text == "Done"
    await client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.retrieve(response.id)
    assert (caught.value.code, caught.value.param) == ("response_not_found", None)
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(response.id)


async def test_a_response_cannot_be_streamed_again(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="local", input="one")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.retrieve(response.id, stream=True)
    assert caught.value.param == "stream"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.retrieve(response.id, starting_after=3)
    assert caught.value.param == "starting_after"
    included = await client.responses.retrieve(response.id, include=["message.output_text.logprobs"])
    assert as_sent(included) == as_sent(response)


async def test_cancel_a_stream(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="local", input="endless", stream=True)
    response_id, last = "", None
    async for event in stream:
        last = event
        if event.type == "response.created":
            response_id = event.response.id
        elif event.type == "response.output_text.delta" and event.sequence_number == 6:
            cancelled = await client.responses.cancel(response_id)
    assert last is not None
    assert last.type == "response.incomplete"
    assert as_sent(last.response) == as_sent(cancelled)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text.startswith("la la ")
    assert as_sent(await client.responses.retrieve(response_id)) == as_sent(cancelled)
    assert as_sent(await client.responses.cancel(response_id)) == as_sent(cancelled)


async def test_cancel_what_never_was(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.cancel("resp_1")
    assert caught.value.code == "response_not_found"


async def test_input_items_are_paged_by_the_sdk(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="local", input=MANY)
    oldest_first = [
        item_text(item)
        async for item in client.responses.input_items.list(response.id, limit=10, order="asc")
    ]
    assert oldest_first == [message["content"] for message in MANY]
    newest_first = [item_text(item) async for item in client.responses.input_items.list(response.id)]
    assert newest_first == oldest_first[::-1]
    page = await client.responses.input_items.list(response.id, limit=20)
    assert page.has_next_page()
    assert not (await page.get_next_page()).has_next_page()


async def test_input_items_of_nothing_and_bad_pages(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_items.list("resp_1")
    response = await client.responses.create(model="local", input="one")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.input_items.list(response.id, limit=1000)
    assert caught.value.param == "limit"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.input_items.list(response.id, after="msg_1")
    assert (caught.value.param, caught.value.code) == ("after", "item_not_found")


async def test_input_tokens(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="local", input="one")
    counted = await client.responses.input_tokens.count(input="two", previous_response_id=first.id)
    second = await client.responses.create(model="local", input="two", previous_response_id=first.id)
    assert second.usage is not None
    assert counted.input_tokens == second.usage.input_tokens
    assert counted.object == "response.input_tokens"
    named = await client.responses.input_tokens.count(model="local", input="two", instructions="Be terse.")
    assert named.input_tokens < counted.input_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.input_tokens.count(model="gpt-5", input="two")
    assert caught.value.code == "model_not_found"


# Chains


async def test_a_chain_by_create_and_stream(served: Served, client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="local", input="one", instructions="Be terse.")
    async with client.responses.stream(model="local", input="two", previous_response_id=first.id) as stream:
        second = await stream.get_final_response()
    third = None
    async for event in await client.responses.create(
        model="local", input="three", previous_response_id=second.id, stream=True
    ):
        if event.type == "response.completed":
            third = event.response
    assert third is not None
    assert [response.output_text for response in (first, second, third)] == ["eins", "zwei", "drei"]
    assert third.previous_response_id == second.id
    assert turns(served) == ["user: one", "assistant: eins", "user: two", "assistant: zwei", "user: three"]


async def test_a_chain_without_a_parent_is_a_bad_request(client: AsyncOpenAI) -> None:
    unstored = await client.responses.create(model="local", input="one", store=False)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(
                model="local", input="two", previous_response_id=unstored.id, stream=stream
            )
        assert (caught.value.code, caught.value.param) == (
            "previous_response_not_found",
            "previous_response_id",
        )


async def test_a_chain_from_a_thread(served: Served) -> None:
    def talk() -> list[str]:
        with OpenAI(base_url=f"{served.url}/v1", api_key="not-needed", max_retries=0) as client:
            first = client.responses.create(model="local", input="one")
            second = client.responses.create(model="local", input="two", previous_response_id=first.id)
            client.responses.delete(first.id)
            listed = client.responses.input_items.list(second.id)
            return [first.output_text, second.output_text, *map(item_text, listed)]

    assert await trio.to_thread.run_sync(talk) == ["eins", "zwei", "two"]


# Conversations


async def test_a_conversation_from_create_to_delete(client: AsyncOpenAI) -> None:
    begun = await client.conversations.create(
        metadata={"topic": "boats"}, items=[{"type": "message", "role": "user", "content": "ahoy"}]
    )
    assert begun.object == "conversation"
    assert begun.metadata == {"topic": "boats"}
    assert await client.conversations.retrieve(begun.id) == begun
    updated = await client.conversations.update(begun.id, metadata={"topic": "ships"})
    assert (updated.id, updated.metadata) == (begun.id, {"topic": "ships"})
    deleted = await client.conversations.delete(begun.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (begun.id, True, "conversation.deleted")
    with pytest.raises(openai.NotFoundError) as caught:
        await client.conversations.retrieve(begun.id)
    assert caught.value.code == "conversation_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.conversations.create(metadata={"k": "x" * 513})
    assert refused.value.param == "metadata"


async def test_items_of_a_conversation(client: AsyncOpenAI) -> None:
    begun = await client.conversations.create()
    added = await client.conversations.items.create(begun.id, items=MANY[:20])
    await client.conversations.items.create(begun.id, items=MANY[20:])
    assert [item_text(item) for item in added.data] == [message["content"] for message in MANY[:20]]
    listed = [item async for item in client.conversations.items.list(begun.id, order="asc", limit=10)]
    assert [item_text(item) for item in listed] == [message["content"] for message in MANY]
    first = listed[0]
    assert first.type == "message"
    one = await client.conversations.items.retrieve(first.id, conversation_id=begun.id)
    assert one == first
    left = await client.conversations.items.delete(first.id, conversation_id=begun.id)
    assert left == begun
    with pytest.raises(openai.NotFoundError) as caught:
        await client.conversations.items.retrieve(first.id, conversation_id=begun.id)
    assert caught.value.code == "item_not_found"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.conversations.items.create("conv_1", items=MANY[:1])
    assert caught.value.code == "conversation_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.conversations.items.create(begun.id, items=MANY)
    assert refused.value.param == "items"


async def test_turns_of_a_conversation_by_create_and_stream(served: Served, client: AsyncOpenAI) -> None:
    begun = await client.conversations.create()
    first = await client.responses.create(model="local", input="one", conversation=begun.id)
    async with client.responses.stream(model="local", input="two", conversation={"id": begun.id}) as stream:
        await stream.get_final_response()
    async for _ in await client.responses.create(
        model="local", input="three", conversation=begun.id, stream=True
    ):
        pass
    assert first.conversation is not None
    assert first.conversation.id == begun.id
    assert turns(served) == ["user: one", "assistant: eins", "user: two", "assistant: zwei", "user: three"]
    said = [item_text(item) async for item in client.conversations.items.list(begun.id, order="asc")]
    assert said == ["one", "eins", "two", "zwei", "three", "drei"]


async def test_a_reasoning_turn_is_listed(client: AsyncOpenAI) -> None:
    begun = await client.conversations.create()
    response = await client.responses.create(model="local", input="think", conversation=begun.id)
    listed = [item async for item in client.conversations.items.list(begun.id, order="asc")]
    check_items([item.to_dict(mode="json", warnings=False) for item in listed])
    assert [item.type for item in listed] == ["message", "reasoning", "message"]
    assert [item.to_dict() for item in listed[1:]] == [item.to_dict() for item in response.output]


async def test_keys_of_two_people() -> None:
    async with (
        serving_script(*ROWS, api_keys=("ann", "bob")) as guarded,
        AsyncOpenAI(base_url=f"{guarded.url}/v1", api_key="ann", max_retries=0) as ann,
        AsyncOpenAI(base_url=f"{guarded.url}/v1", api_key="bob", max_retries=0) as bob,
    ):
        response = await ann.responses.create(model="local", input="one")
        begun = await ann.conversations.create()
        with pytest.raises(openai.NotFoundError):
            await bob.responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError):
            await bob.conversations.retrieve(begun.id)
        with pytest.raises(openai.BadRequestError):
            await bob.responses.create(model="local", input="two", previous_response_id=response.id)
        assert (await ann.responses.retrieve(response.id)).output_text == "eins"


async def test_disabled_stores_are_bad_requests() -> None:
    async with (
        serving_script(*ROWS, responses_store_max_entries=0, conversation_store_max_entries=0) as served,
        AsyncOpenAI(base_url=f"{served.url}/v1", api_key="not-needed", max_retries=0) as client,
    ):
        response = await client.responses.create(model="local", input="one")
        for refused in (
            client.responses.retrieve(response.id),
            client.responses.delete(response.id),
            client.responses.cancel(response.id),
            client.conversations.create(),
            client.responses.create(model="local", input="two", previous_response_id=response.id),
            client.responses.create(model="local", input="two", conversation="c"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await refused
            assert caught.value.code == "store_disabled"
