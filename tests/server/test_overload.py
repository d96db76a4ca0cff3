"""More requests than the queue holds: 503 at once, and room again as soon as one has finished or dropped."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from support.served import Served, body_of, checked_error, serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.served import EventReader

ROWS = (ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01), ScriptRow(emit=("ok",)))


@asynccontextmanager
async def full_server() -> AsyncIterator[tuple[Served, EventReader]]:
    """One slot, held by the stream that comes with it, and a queue of one place, which is taken too.

    The request that waits must be answered in the end.
    """

    async def wait_in_queue() -> None:
        assert text_of(await served.create(input="waiting")) == "ok"

    async with (
        serving_script(*ROWS, parallel=1, max_queue_depth=1) as served,
        trio.open_nursery() as nursery,
        served.open_stream(input="endless") as holder,
    ):
        await holder.next("response.output_text.delta")
        nursery.start_soon(wait_in_queue)
        await served.until(running=1, waiting=1)
        yield served, holder


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_one_too_many_is_refused(stream: bool) -> None:
    async with full_server() as (served, holder):
        before = await served.health()
        for _ in range(3):
            reply = await served.refusal(stream=stream)
            error = checked_error(reply)
            assert reply.status_code == 503
            assert int(reply.headers["retry-after"]) >= 1
            assert (error["type"], error["code"], error["param"]) == (
                "server_error",
                "server_overloaded",
                None,
            )
        after = await served.health()
        assert (after["running"], after["waiting"], after["rows"]) == (1, 1, 1)
        assert after["steps"] >= before["steps"]
        await holder.next("response.output_text.delta")


async def test_a_request_that_can_never_succeed_is_told_so_even_then() -> None:
    """Validation comes before the queue."""
    async with full_server() as (served, _):
        reply = await served.refusal(temperature=3)
        assert (reply.status_code, checked_error(reply)["param"]) == (400, "temperature")


async def test_what_takes_no_slot_is_answered_even_then() -> None:
    async with full_server() as (served, _):
        health = await served.client.get("/health")
        assert (health.status_code, health.json()["ok"]) == (200, True)
        assert (await served.client.get("/v1/models")).status_code == 200


async def test_the_place_of_one_that_finished() -> None:
    async with full_server() as (served, holder):
        await served.refusal()
        await holder.leave()
        await served.idle()
        assert text_of(await served.create()) == "ok"


async def test_the_place_of_one_that_dropped_while_waiting() -> None:
    async with (
        serving_script(*ROWS, parallel=1, max_queue_depth=1) as served,
        served.open_stream(input="endless") as holder,
    ):
        await holder.next("response.output_text.delta")
        async with served.connect() as client:
            await client.send("POST", "/v1/responses", body=json.dumps(body_of({})).encode())
            await served.until(waiting=1)
            await served.refusal()
        await served.until(waiting=0)
        async with served.open_stream(input="next") as following:
            await following.next("response.in_progress")
            await served.refusal()
            await holder.leave()
            assert text_of(await following.rest()) == "ok"


async def test_without_a_queue_a_second_request_is_refused() -> None:
    async with serving_script(*ROWS, parallel=1, max_queue_depth=0) as served:
        async with served.open_stream(input="endless") as holder:
            await holder.next("response.output_text.delta")
            assert (await served.refusal()).status_code == 503
        await served.idle()
        assert text_of(await served.create()) == "ok"


async def test_those_who_wait_are_served_in_order() -> None:
    finished: list[int] = []
    async with serving_script(*ROWS, parallel=1, max_queue_depth=5) as served:

        async def wait_in_queue(number: int) -> None:
            await served.create(input=f"number {number}")
            finished.append(number)

        async with trio.open_nursery() as nursery, served.open_stream(input="endless") as holder:
            await holder.next("response.output_text.delta")
            for number in range(5):
                nursery.start_soon(wait_in_queue, number)
                await served.until(waiting=number + 1)
        served_in_order = [prompt.rpartition("number ")[2][0] for prompt in served.engine.prompts()[1:]]
        assert served_in_order == list("01234")
    assert sorted(finished) == [0, 1, 2, 3, 4]
