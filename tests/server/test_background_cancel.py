"""Background responses that are cancelled or deleted, at every stage."""

from __future__ import annotations

import pytest
from support.gates import held_rendering, held_steps
from support.jobs import HAIKU, ROWS, Job, create_job, no_job_left
from support.served import Served, checked_error, serving_script, text_of


async def cancelled(served: Served, job: Job) -> None:
    """Cancel it, look at it every way, and delete it."""
    assert (await served.client.delete(job.path)).status_code == 400
    await job.poll()
    final = await job.cancel()
    assert (final["status"], final["output"], final["usage"]["total_tokens"]) == ("cancelled", [], 0)
    assert await job.poll() == await job.cancel() == final
    await no_job_left(served)
    assert await job.poll() == final
    await job.delete()


async def test_cancelled_while_its_prompt_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_script(*ROWS) as served:
        with held_rendering(served, monkeypatch):
            job = await create_job(served, input="haiku")
            await served.until(running=1)
            await cancelled(served, job)
        assert served.engine.prompts() == []


async def test_cancelled_while_it_waits_for_a_slot() -> None:
    async with serving_script(*ROWS, parallel=1) as served:
        async with served.open_stream(input="endless") as holder:
            await holder.next("response.output_text.delta")
            first, second, third = [await create_job(served, input=f"number {i}.") for i in range(3)]
            await served.until(running=1, waiting=3)
            await second.cancel()
            await served.until(running=1, waiting=2)
        assert [(await job.end())["status"] for job in (first, second, third)] == [
            "completed",
            "cancelled",
            "completed",
        ]
        assert ["number 1." in prompt for prompt in served.engine.prompts()] == [False] * 3
        await second.delete()


@pytest.mark.parametrize(
    ("text", "status"), [("prefill", "queued"), ("endless", "in_progress")], ids=["before it begins", "later"]
)
async def test_cancelled_in_the_engine(text: str, status: str) -> None:
    async with serving_script(*ROWS) as served:
        job = await create_job(served, input=text)
        await served.until(rows=1)
        await job.until(status)
        await cancelled(served, job)
        (lag,) = served.engine.removal_lags()
        assert lag <= 1
        assert text_of(await served.create(input="haiku")) == "".join(HAIKU)


async def test_cancelled_while_the_engine_is_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer does not wait for the step; its slot serves the next one."""
    async with serving_script(*ROWS, parallel=1) as served:
        job = await create_job(served, input="endless")
        await job.until("in_progress")
        with held_steps(served, monkeypatch):
            assert (await job.cancel())["status"] == "cancelled"
            following = await create_job(served, input="haiku")
            await served.until(running=1, waiting=0, jobs=1)
            assert (await job.poll())["status"] == "cancelled"
        assert text_of(await following.end()) == "".join(HAIKU)


async def test_cancelled_at_the_end_it_stays_as_it_is() -> None:
    async with serving_script(*ROWS) as served:
        for fields, status in (
            ({"input": "haiku"}, "completed"),
            ({"input": "haiku", "max_output_tokens": 1}, "incomplete"),
            ({"input": "bad"}, "failed"),
        ):
            job = await create_job(served, **fields)
            final = await job.end()
            assert final["status"] == status
            assert await job.cancel() == await job.poll() == final
            await job.delete()


async def test_cancelled_at_every_moment() -> None:
    """Whoever comes first, cancel or end, decides for good; nothing is left either way."""
    ends: set[str] = set()
    async with serving_script(*ROWS) as served:
        for polls in range(20):
            job = await create_job(served, input="haiku")
            for _ in range(polls):
                await job.poll()
            ends.add((await job.cancel())["status"])
            await no_job_left(served)
            await job.delete()
    assert ends == {"cancelled", "completed"}


async def test_an_unfinished_one_is_not_deleted() -> None:
    async with serving_script(*ROWS, parallel=1) as served:
        running = await create_job(served, input="endless")
        await running.until("in_progress")
        waiting = await create_job(served, input="haiku")
        for job, status in ((running, "in_progress"), (waiting, "queued")):
            reply = await served.client.delete(job.path)
            error = checked_error(reply)
            assert (reply.status_code, error["type"], error["code"]) == (400, "invalid_request_error", None)
            assert f"(status: {status})" in error["message"]
            assert (await job.poll())["status"] == status
        await running.cancel()
        await running.delete()
        await waiting.end()
        await waiting.delete()


async def test_one_that_is_not_to_be_stored_is_cancelled_and_deleted_like_others() -> None:
    async with serving_script(*ROWS) as served:
        job = await create_job(served, input="endless", store=False)
        await job.until("in_progress")
        await cancelled(served, job)
