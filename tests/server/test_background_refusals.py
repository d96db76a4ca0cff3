"""Background responses that are refused: for what they ask, for their number, their memory, the queue."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from support.jobs import HAIKU, ROWS, Job, create_job, no_job_left, refused_job, request_job
from support.served import Served, checked_error, checked_response, serving_script, text_of


async def assert_refused(served: Served, param: str | None, code: str | None, **fields: Any) -> None:
    """400, and no job."""
    status, error = await refused_job(served, **fields)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, code)
    assert (await served.health())["jobs"] == 0


async def test_what_no_request_may_say() -> None:
    async with serving_script(*ROWS) as served:
        await assert_refused(served, "background", None, stream=True)
        await assert_refused(served, "temperature", None, temperature=3)
        await assert_refused(served, "model", "model_not_found", model="gpt-5")
        await assert_refused(served, "input", None, input=[])
        await assert_refused(served, "tools[0].type", None, tools=[{"type": "web_search"}])
        await assert_refused(served, "logit_bias", None, logit_bias={"9999999": 1})
        await assert_refused(served, "background", None, background="yes")
        unknown = {"previous_response_id": "resp_0"}
        await assert_refused(served, "previous_response_id", "previous_response_not_found", **unknown)
        assert served.engine.prompts() == []


@pytest.mark.parametrize(
    ("flag", "code"),
    [
        ("responses_background_max_jobs", None),
        ("responses_store_max_entries", "store_disabled"),
        ("responses_store_max_bytes", None),
    ],
)
async def test_a_flag_that_turns_it_off(flag: str, code: str | None) -> None:
    async with serving_script(*ROWS, **{flag: 0}) as served:
        for store in (True, False):
            await assert_refused(served, "background", code, store=store)
        assert text_of(await served.create(input="haiku")) == "".join(HAIKU), "the foreground goes on"
        assert len(served.engine.prompts()) == 1


def check_rate_limit(reply: Any) -> None:
    """429 as it is ruled."""
    error = checked_error(reply)
    assert reply.status_code == 429
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)
    assert int(reply.headers["retry-after"]) >= 1


async def test_as_many_as_there_may_be() -> None:
    async with serving_script(*ROWS, responses_background_max_jobs=2, parallel=1) as served:
        first, second = [await create_job(served, input="endless") for _ in range(2)]
        for store in (True, False):
            check_rate_limit(await request_job(served, store=store))
        status, error = await refused_job(served, temperature=3)
        assert (status, error["param"]) == (400, "temperature"), "validation comes first"
        assert (await served.health())["jobs"] == 2
        async with served.open_stream(input="haiku") as stream:  # a slot is not a job
            await stream.next("response.in_progress")
            await second.cancel()
            third = await create_job(served, input="haiku")
            check_rate_limit(await request_job(served))
            await first.cancel()
            assert text_of(await stream.rest()) == "".join(HAIKU)
        assert (await third.end())["status"] == "completed"
        await no_job_left(served)


async def test_as_much_memory_as_there_may_be() -> None:
    text = "endless" + " " * 3000
    async with serving_script(*ROWS) as served:
        job = await create_job(served, input=text)
        size = (await served.health())["job_bytes"]
        await job.cancel()
        assert 3000 < size < 20_000
        await no_job_left(served)
    async with serving_script(*ROWS, responses_store_max_bytes=2 * size + size // 2) as served:
        stored = await served.create(input="haiku")
        first, second = [await create_job(served, input=text) for _ in range(2)]
        check_rate_limit(await request_job(served, input=text))
        assert (await served.health())["job_bytes"] == 2 * size
        kept = await served.client.get(f"/v1/responses/{stored['id']}")
        assert checked_response(kept) == stored, "jobs push nothing out of the store"
        await first.cancel()
        third = await create_job(served, input=text)
        for job in (second, third):
            await job.cancel()
        await no_job_left(served)


async def test_a_full_queue() -> None:
    async with serving_script(*ROWS, parallel=1, max_queue_depth=1) as served:
        running = await create_job(served, input="endless")
        await served.until(running=1)
        waiting = await create_job(served, input="haiku")
        await served.until(waiting=1)
        for background in (True, False):
            reply = await served.refusal(background=background)
            error = checked_error(reply)
            assert reply.status_code == 503
            assert (error["type"], error["code"]) == ("server_error", "server_overloaded")
            assert int(reply.headers["retry-after"]) >= 1
        status, error = await refused_job(served, stream=True)
        assert (status, error["param"]) == (400, "background"), "validation comes first"
        assert (await served.health())["jobs"] == 2, "a refused one leaves nothing"
        await running.cancel()
        assert text_of(await waiting.end()) == "".join(HAIKU)
        await no_job_left(served)


async def test_a_full_cap_comes_before_a_full_queue() -> None:
    settings = {"parallel": 1, "max_queue_depth": 0, "responses_background_max_jobs": 1}
    async with serving_script(*ROWS, **settings) as served:
        job = await create_job(served, input="endless")
        await served.until(running=1)
        check_rate_limit(await request_job(served))
        assert (await served.refusal()).status_code == 503
        await job.cancel()


async def test_more_at_once_than_the_queue_holds() -> None:
    """Each is refused, ends as overloaded, or is answered, and some are."""
    refusals: list[int] = []
    jobs: list[Job] = []

    async def ask() -> None:
        reply = await request_job(served, input="haiku")
        if reply.status_code == 200:
            jobs.append(Job(served, reply))
        else:
            error = checked_error(reply)
            assert (reply.status_code, error["code"]) == (503, "server_overloaded")
            refusals.append(reply.status_code)

    async with serving_script(*ROWS, parallel=1, max_queue_depth=1) as served:
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(ask)
        ends = [await job.end() for job in jobs]
        await no_job_left(served)
    failed = [end for end in ends if end["status"] == "failed"]
    completed = [end for end in ends if end["status"] == "completed"]
    assert len(failed) + len(completed) + len(refusals) == 30
    assert completed
    assert refusals or failed
    assert {end["error"]["code"] for end in failed} <= {"server_overloaded"}
