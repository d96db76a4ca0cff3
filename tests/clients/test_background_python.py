"""Background responses through the OpenAI SDK for Python: created, polled in a loop, cancelled, deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest
import trio
from openai import AsyncOpenAI, OpenAI
from support.served import Served, serving_script
from support.wire import validate_response

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai.types.responses import Response

ROWS = (
    ScriptRow(when="capital", emit=("The capital of France", " is", " Paris.")),
    ScriptRow(when="fail", emit=("a",), then="raise"),
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(emit=("hel", "lo")),
)
UNFINISHED = ("queued", "in_progress")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving_script(
        *ROWS, parallel=2, max_queue_depth=2, responses_background_max_jobs=3
    ) as running:
        yield running
        await running.until(jobs=0)


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="not-needed", max_retries=0) as opened:
        yield opened


def checked(response: Response) -> Response:
    """``response`` as the SDK read it, which has to be what a strict reader of the API accepts."""
    read: dict[str, Any] = response.to_dict(mode="json", warnings=False)
    # The SDK reads times as floats.
    validate_response(read | {key: int(read[key]) for key in ("created_at", "completed_at") if read[key]})
    assert response.background is True
    return response


async def ended(client: AsyncOpenAI, response: Response) -> Response:
    """Poll as the SDK's users do, without their pauses."""
    while response.status in UNFINISHED:
        assert (response.output, response.output_text) == ([], "")
        response = checked(await client.responses.retrieve(response.id))
    return response


async def test_create_and_retrieve(client: AsyncOpenAI) -> None:
    created = checked(
        await client.responses.create(model="local", input="capital?", background=True, metadata={"k": "v"})
    )
    assert (created.status, created.model, created.metadata) == ("queued", "scripted", {"k": "v"})
    response = await ended(client, created)
    assert (response.id, response.status) == (created.id, "completed")
    assert response.output_text == "The capital of France is Paris."
    assert response.usage is not None
    assert response.usage.output_tokens == 4
    items = [item async for item in await client.responses.input_items.list(created.id)]
    assert len(items) == 1
    await client.responses.delete(created.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.retrieve(created.id)
    assert caught.value.code == "response_not_found"


async def test_from_a_thread(served: Served) -> None:
    def use() -> tuple[str, str | None]:
        with OpenAI(base_url=f"{served.url}/v1", api_key="not-needed", max_retries=0) as client:
            response = checked(client.responses.create(model="local", input="capital?", background=True))
            while response.status in UNFINISHED:
                response = checked(client.responses.retrieve(response.id))
            endless = client.responses.create(model="local", input="endless", background=True)
            return response.output_text, client.responses.cancel(endless.id).status

    assert await trio.to_thread.run_sync(use) == ("The capital of France is Paris.", "cancelled")


async def test_cancel(client: AsyncOpenAI) -> None:
    for _ in range(3):
        response = checked(await client.responses.create(model="local", input="endless", background=True))
        while response.status != "in_progress":
            response = checked(await client.responses.retrieve(response.id))
        with pytest.raises(openai.BadRequestError):
            await client.responses.delete(response.id)
        cancelled = checked(await client.responses.cancel(response.id))
        assert (cancelled.status, cancelled.output) == ("cancelled", [])
        assert await client.responses.cancel(response.id) == cancelled
        assert checked(await client.responses.retrieve(response.id)) == cancelled
        await client.responses.delete(response.id)


async def test_an_incomplete_and_a_failed_one(client: AsyncOpenAI) -> None:
    created = await client.responses.create(
        model="local", input="endless", background=True, max_output_tokens=2
    )
    response = await ended(client, created)
    assert (response.status, response.output_text) == ("incomplete", "la la ")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    response = await ended(
        client, await client.responses.create(model="local", input="fail", background=True)
    )
    assert (response.status, response.output_text) == ("failed", "")
    assert response.error is not None
    assert response.error.code == "server_error"


async def test_a_chain(served: Served, client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="local", input="endless", background=True)
    with pytest.raises(openai.BadRequestError, match="has not finished") as caught:
        await client.responses.create(model="local", input="hi", previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"
    await client.responses.cancel(first.id)
    second = await ended(
        client,
        await client.responses.create(
            model="local", input="capital?", previous_response_id=first.id, background=True
        ),
    )
    third = await client.responses.create(model="local", input="hi", previous_response_id=second.id)
    assert (third.output_text, third.background) == ("hello", None)
    assert "assistant\nThe capital of France is Paris.<|im_end|>" in served.engine.prompts()[-1]


async def test_a_stored_conversation(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    created = await client.responses.create(
        model="local", input="capital?", conversation=conversation.id, background=True
    )
    await ended(client, created)
    items = [item async for item in await client.conversations.items.list(conversation.id, order="asc")]
    assert [item.type for item in items] == ["message", "message"]


async def test_what_is_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.responses.create(model="local", input="hi", background=True, stream=True)
    assert bad.value.param == "background"
    jobs = [await client.responses.create(model="local", input="endless", background=True) for _ in range(3)]
    with pytest.raises(openai.RateLimitError) as limited:
        await client.responses.create(model="local", input="hi", background=True)
    assert limited.value.code == "rate_limit_exceeded"
    assert int(limited.value.response.headers["retry-after"]) >= 1
    for job in jobs:
        await client.responses.cancel(job.id)


async def test_many_at_once_with_retries(served: Served) -> None:
    """More than there may be: whoever is told to come back later is answered in the end."""
    answers: list[str] = []

    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="not-needed", max_retries=0) as client:

        async def ask() -> None:
            while True:
                try:
                    created = await client.responses.create(model="local", input="hi", background=True)
                except (openai.RateLimitError, openai.InternalServerError):
                    continue
                response = await ended(client, created)
                if response.status == "completed":
                    answers.append(response.output_text)
                    return
                assert response.error is not None
                code: str = response.error.code  # one that the SDK does not know
                assert code == "server_overloaded"

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(ask)
    assert answers == ["hello"] * 12
