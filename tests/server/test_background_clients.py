"""Whose a background response is: clients that come and go, conversations, keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs
from support.jobs import HAIKU, ROWS, create_job, no_job_left, refused_job, said_in
from support.served import (
    ServerClient,
    body_of,
    checked_error,
    checked_response,
    http_client,
    serving_script,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.http_server import Client


# Clients that come and go


async def close(client: Client) -> None:
    await client.stream.aclose()


async def reset(client: Client) -> None:
    await client.reset()


each_way_to_leave = pytest.mark.parametrize("leave", [close, reset])


@each_way_to_leave
async def test_a_creator_that_leaves_with_the_answer(leave: Callable[[Client], Awaitable[None]]) -> None:
    body = json.dumps(body_of({"input": "haiku", "background": True})).encode()
    async with serving_script(*ROWS, parallel=1) as served, served.open_stream(input="endless") as holder:
        await holder.next("response.output_text.delta")
        async with served.connect() as client:
            await client.send("POST", "/v1/responses", body=body)
            job_id = (await client.reply()).json["id"]
            await leave(client)
        await served.until(jobs=1, waiting=1)
        await holder.leave()
        await served.until(jobs=0)
        response = checked_response(await served.client.get(f"/v1/responses/{job_id}"))
        assert (response["status"], text_of(response)) == ("completed", "".join(HAIKU))


@each_way_to_leave
async def test_a_creator_that_leaves_before_it_reads_the_answer(
    leave: Callable[[Client], Awaitable[None]],
) -> None:
    body = json.dumps(body_of({"input": "haiku", "background": True, "conversation": "c1"})).encode()
    async with serving_script(*ROWS, parallel=1) as served, served.open_stream(input="endless") as holder:
        await holder.next("response.output_text.delta")
        async with served.connect() as client:
            await client.send("POST", "/v1/responses", body=body)
            await served.until(jobs=1, waiting=1)
            await leave(client)
        await served.until(jobs=1, waiting=1)
        await holder.leave()
        await served.until(jobs=0)
        assert await said_in(served, "c1") == ["haiku", "".join(HAIKU)]


async def test_creators_that_leave_at_every_moment() -> None:
    """A request that is taken in at all becomes a job that runs to its end, whatever the creator does."""
    moments = 60
    body = json.dumps(body_of({"input": "haiku", "background": True})).encode()
    with capture_logs() as logs:
        async with serving_script(*ROWS) as served:
            for moment in range(moments):
                async with served.connect() as client:
                    await client.send("POST", "/v1/responses", body=body)
                    for _ in range(moment):
                        await trio.lowlevel.checkpoint()
                    await client.reset()
                await served.until(jobs=0)
            prompts = served.engine.prompts()
    ends = [line["status"] for line in logs if line["event"] == "job"]
    assert ends == ["completed"] * len(prompts)
    assert len(ends) > moments // 2, f"{len(ends)} of {moments} were taken in"


@each_way_to_leave
async def test_pollers_that_leave(leave: Callable[[Client], Awaitable[None]]) -> None:
    async with serving_script(*ROWS, parallel=1) as served:
        running = await create_job(served, input="endless")
        await running.until("in_progress")
        waiting = await create_job(served, input="haiku")
        for job in (running, waiting) * 5:
            async with served.connect() as client:
                await client.send("GET", job.path)
                await leave(client)
        for job, status in ((running, "in_progress"), (waiting, "queued")):
            assert (await job.poll())["status"] == status
        await running.cancel()
        assert text_of(await waiting.end()) == "".join(HAIKU)


async def test_a_stream_beside_jobs_is_cancelled_by_its_client_alone() -> None:
    async with serving_script(*ROWS) as served:
        job = await create_job(served, input="endless")
        async with served.open_stream(input="endless") as stream:
            await stream.next("response.output_text.delta")
            await served.until(rows=2)
        await served.until(rows=1)
        await job.until("in_progress")
        await job.cancel()


# Keys


async def test_two_keys() -> None:
    async with serving_script(*ROWS, api_keys=("one", "two")) as served:
        async with http_client(served.url) as one, http_client(served.url) as two:
            one.headers["Authorization"] = "Bearer one"
            two.headers["Authorization"] = "Bearer two"
            mine, theirs = ServerClient(served.url, one), ServerClient(served.url, two)
            job = await create_job(mine, input="endless")
            await job.until("in_progress")
            stranger = {"previous_response_id": job.id}
            for _ in range(2):
                for reply in (
                    await two.get(job.path),
                    await two.delete(job.path),
                    await two.post(f"{job.path}/cancel"),
                    await two.get(f"{job.path}/input_items"),
                ):
                    assert (reply.status_code, checked_error(reply)["code"]) == (404, "response_not_found")
                status, error = await refused_job(theirs, **stranger)
                assert (status, error["code"]) == (400, "previous_response_not_found")
                await job.poll()
                await job.cancel()  # and once more, now that it has ended
            assert (await served.client.get(job.path)).status_code == 401
            await job.delete()
        await no_job_left(served)


# Conversations


async def test_a_conversation_is_read_at_the_start_and_grows_at_the_end() -> None:
    async with serving_script(*ROWS, parallel=1) as served:
        await served.create(input="first", conversation="c1")
        async with served.open_stream(input="endless") as holder:
            await holder.next("response.output_text.delta")
            second = await create_job(served, input="second haiku", conversation="c1")
            third = await create_job(served, input="third", conversation="c1", max_output_tokens=1)
            assert second.last["conversation"] == {"id": "c1"}
            assert await said_in(served, "c1") == ["first", "ok"]
        for job in (second, third):
            await job.end()
        assert await said_in(served, "c1") == ["first", "ok", "second haiku", "".join(HAIKU), "third", "ok"]
        prompt = served.engine.prompts()[-1]
    assert "third" in prompt
    assert "first" in prompt
    assert "second" not in prompt, "it was not over when the third was created"


async def test_a_turn_without_output_is_not_appended() -> None:
    async with serving_script(*ROWS, context_window=256) as served:
        await served.create(input="first", conversation="c1")
        for fields in ({"input": "bad"}, {"input": "knot " * 300}, {"input": "haiku", "store": False}):
            await (await create_job(served, conversation="c1", **fields)).end()
        job = await create_job(served, input="endless", conversation="c1")
        await job.until("in_progress")
        await job.cancel()
        await no_job_left(served)
        assert await said_in(served, "c1") == ["first", "ok"]
