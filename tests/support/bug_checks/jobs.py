"""Cases about background responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.bug_checks.check import Checks
from support.bug_checks.prompts import ANSWER
from support.jobs import Job
from support.served import text_of

if TYPE_CHECKING:
    from support.case_runner import CaseRun
    from support.exchanges import Exchange

CHECKS = Checks()

ENDLESS = {"emit": ["la "], "forever": True}


def job_of(run: CaseRun, made: Exchange) -> Job:
    """The background response that has been created."""
    assert made.response.get("background") is True, "not a background response"
    return Job(run.served, made.reply)


@CHECKS("B101", rows=(ENDLESS,))
async def cancelled_is_cancelled_for_good(run: CaseRun) -> None:
    created, cancelled, found = run.steps
    job = job_of(run, created)
    assert cancelled.response["status"] == "cancelled"
    assert found.response == cancelled.response == await job.poll()
    await run.served.engine.wait_drained()
    assert await job.poll() == await job.cancel() == cancelled.response


@CHECKS("B104")
async def a_job_is_polled_and_never_streamed(run: CaseRun) -> None:
    created, streamed = run.steps
    job = job_of(run, created)
    assert "'stream'" in streamed.refused("stream")
    assert text_of(await job.end()) == ANSWER
    assert (await run.send("GET", f"{job.path}?stream=true")).refused("stream")


@CHECKS("B106")
async def a_job_does_not_outlive_its_server(run: CaseRun) -> None:
    created, found = run.steps
    await job_of(run, created).assert_unknown()
    assert found.error(404)["code"] == "response_not_found"


@CHECKS("B108", rows=({"prefill_delay": 0.5, **ENDLESS},))
async def a_job_is_there_at_once(run: CaseRun) -> None:
    job = job_of(run, run.only)
    # That there is neither output nor usage before the end is checked in every answer.
    assert job.statuses == ["queued"]
    await job.until("in_progress")
    assert (await job.cancel())["status"] == "cancelled"
    assert job.statuses == ["queued", "in_progress", "cancelled"]
