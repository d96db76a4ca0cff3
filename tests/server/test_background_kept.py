"""Background responses after their end: how long they are kept, and what continues them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from support.jobs import HAIKU, ROWS, create_job
from support.served import Served, checked_error, serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.published import Json


async def test_one_that_is_not_to_be_stored() -> None:
    async with serving_script(*ROWS, responses_background_ephemeral_ttl_secs=1) as served:
        job = await create_job(served, input="haiku", store=False)
        assert job.last["store"] is False
        response = await job.end()
        ended = trio.current_time()
        assert text_of(response) == "".join(HAIKU)
        assert await job.poll() == await job.cancel() == response
        for background in (True, False):
            reply = await served.refusal(previous_response_id=job.id, background=background)
            assert (reply.status_code, checked_error(reply)["code"]) == (400, "previous_response_not_found")
        while (await served.client.get(job.path)).status_code == 200:
            pass
        assert trio.current_time() - ended > 0.9
        await job.assert_unknown()


async def test_one_too_large_to_be_kept() -> None:
    """A failed one stands in for it."""
    rows = (ScriptRow(emit=("x" * 20_000,)),)
    async with serving_script(*rows, responses_store_max_bytes=10_000) as served:
        for store in (True, False):
            job = await create_job(served, store=store)
            response = await job.end()
            assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
            assert response["output"] == []
            assert await job.poll() == response
            await job.delete()


async def test_one_that_is_unfinished_is_not_continued() -> None:
    async with serving_script(*ROWS, parallel=1) as served:
        running = await create_job(served, input="endless")
        await running.until("in_progress")
        waiting = await create_job(served, input="haiku")
        for job, status in ((running, "in_progress"), (waiting, "queued")):
            for fields in ({}, {"stream": True}, {"background": True}):
                reply = await served.refusal(previous_response_id=job.id, **fields)
                error = checked_error(reply)
                assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
                assert (error["param"], error["code"]) == ("previous_response_id", None)
                assert error["message"] == f"previous response '{job.id}' has not finished (status: {status})"
        await running.cancel()
        await waiting.end()
        assert (await served.health())["jobs"] == 0


async def test_one_that_has_ended_is_continued_however_it_ended() -> None:
    turns: dict[str, Json] = {
        "completed": {"input": "haiku"},
        "incomplete": {"input": "haiku", "max_output_tokens": 2},
        "failed": {"input": "bad"},
        "cancelled": {"input": "endless"},
    }
    said = {"completed": "".join(HAIKU), "incomplete": "Soft rain", "failed": None, "cancelled": None}
    async with serving_script(*ROWS) as served:
        for status, fields in turns.items():
            job = await create_job(served, **fields)
            if status == "cancelled":
                await job.cancel()
            assert (await job.end())["status"] == status
            for follow in (served.create, served_job(served)):
                child = await follow(input="and a haiku?", previous_response_id=job.id)
                assert (child["status"], child["previous_response_id"]) == ("completed", job.id)
                prompt = served.engine.prompts()[-1]
                assert f"user\n{fields['input']}" in prompt
                text = said[status]
                assert (f"assistant\n{text}<|im_end|>" in prompt) == (text is not None)
                assert "and a haiku?" in prompt


def served_job(served: Served) -> Callable[..., Awaitable[Json]]:
    """Creates a job and waits for its end."""

    async def create(**fields: Any) -> Json:
        return await (await create_job(served, **fields)).end()

    return create
