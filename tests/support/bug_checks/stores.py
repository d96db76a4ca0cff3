"""Cases about stored responses: what is kept, found, deleted, cancelled and listed, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.bug_checks.check import Checks
from support.bug_checks.jobs import job_of
from support.bug_checks.prompts import ANSWER, dialogue
from support.served import text_of

if TYPE_CHECKING:
    from support.case_runner import CaseRun
    from support.exchanges import Exchange

CHECKS = Checks()

ENDLESS = {"when": "go on", "emit": ["la "], "forever": True}
PLAIN = {"emit": ["Hel", "lo", " there."]}


def path_of(made: Exchange, rest: str = "") -> str:
    """Where a created response is found."""
    return f"/v1/responses/{made.response['id']}{rest}"


def assert_not_found(made: Exchange) -> None:
    assert made.error(404)["code"] == "response_not_found"


@CHECKS("B085")
async def a_streamed_response_is_found(run: CaseRun) -> None:
    streamed, found = run.steps
    assert streamed.types[-1] == "response.completed"
    assert found.response == streamed.response
    assert text_of(found.response) == ANSWER


@CHECKS("B089", settings={"responses_store_max_entries": 0})
async def a_server_that_stores_nothing_says_so(run: CaseRun) -> None:
    made, found = run.steps
    assert made.response["store"] is False
    asked = [
        found,
        await run.send("DELETE", path_of(made)),
        await run.send("POST", path_of(made, "/cancel")),
        await run.send("GET", path_of(made, "/input_items")),
    ]
    for refusal in asked:
        assert "disabled" in refusal.refused(code="store_disabled")
    chained = await run.again(previous_response_id=made.response["id"])
    assert "disabled" in chained.refused("previous_response_id", "store_disabled")


@CHECKS("B092")
async def what_is_deleted_is_gone(run: CaseRun) -> None:
    made, deleted, found = run.steps
    assert deleted.response == {"id": made.response["id"], "object": "response", "deleted": True}
    assert_not_found(found)
    assert_not_found(await run.send("DELETE", path_of(made)))
    assert_not_found(await run.send("GET", path_of(made, "/input_items")))
    parent = await run.again()
    child = await run.again(input="y", previous_response_id=parent.response["id"])
    await run.send("DELETE", path_of(parent))
    await run.again(input="z", previous_response_id=child.response["id"])
    assert run.served.engine.prompts()[-1:] == [dialogue("x", "y", "z")]


BOUNDED = {"responses_store_max_entries": 8, "responses_store_max_bytes": 75_000}


@CHECKS("B093", repeat=24, settings=BOUNDED, rows=(ENDLESS, PLAIN))
async def the_oldest_make_room(run: CaseRun) -> None:
    async def kept() -> list[bool]:
        return [(await run.send("GET", path_of(made))).answered for made in run.exchanges]

    assert await kept() == [False] * 16 + [True] * 8
    oversized = await run.again(user="u" * 100_000)
    assert_not_found(await run.send("GET", path_of(oversized)))
    assert await kept() == [False] * 16 + [True] * 8
    large = await run.again(user="u" * 60_000)
    assert (await run.send("GET", path_of(large))).response == large.response
    left = await kept()
    assert left == sorted(left)
    assert 0 < sum(left) < 7
    job = job_of(run, await run.again(input="go on", background=True))
    for _ in range(9):
        await run.again()
    assert await kept() == [False] * 24
    await job.until("in_progress")
    assert (await job.cancel())["status"] == "cancelled"


@CHECKS("B096")
async def what_a_query_cannot_have_is_refused(run: CaseRun) -> None:
    made, replayed, listed = run.steps
    assert "'stream'" in replayed.refused("stream")
    assert "'sideways'" in listed.refused("order")
    assert "stream" in (await run.send("GET", path_of(made, "?starting_after=3"))).refused("starting_after")
    for limit in ("0", "101", "-1", "many", "1.5"):
        refusal = await run.send("GET", path_of(made, f"/input_items?limit={limit}"))
        assert f"'{limit}'" in refusal.refused("limit")
    found = await run.send("GET", path_of(made, "?include[]=message.output_text.logprobs&stream=false"))
    assert found.response == made.response
    for query in ("", "?limit=1&order=asc", "?limit=100&order=desc"):
        page = (await run.send("GET", path_of(made, f"/input_items{query}"))).response
        assert [item["content"][0]["text"] for item in page["data"]] == ["x"]


@CHECKS("B102", rows=(ENDLESS, PLAIN), settings={"parallel": 1})
async def a_response_is_cancelled_by_its_id(run: CaseRun) -> None:
    assert_not_found(run.only)
    body = {"model": "local", "input": "go on", "background": True}
    running, waiting = [job_of(run, await run.send("POST", "/v1/responses", body)) for _ in range(2)]
    await running.until("in_progress")
    assert (await waiting.poll())["status"] == "queued"
    for job in (waiting, running):
        assert (await job.cancel())["status"] == "cancelled"
    async with run.served.open_stream(input="go on") as events:
        path = f"/v1/responses/{(await events.next())['response']['id']}"
        await events.next("response.output_text.delta")
        cancelled = await run.send("POST", f"{path}/cancel")
        assert (cancelled.response["status"], cancelled.response["error"]) == ("cancelled", None)
        assert text_of(cancelled.response).startswith("la ")
        assert await events.rest() == cancelled.response
    assert events.received[-1]["type"] == "response.incomplete"
    await run.served.engine.wait_drained()
    for again in (await run.send("GET", path), await run.send("POST", f"{path}/cancel")):
        assert again.response == cancelled.response
