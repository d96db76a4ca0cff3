"""What the create request of a background response is refused for, and that nothing is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.job_bench import JobBench
from support.job_checks import assert_refused, finish
from support.service_bench import limits, message

from mlxcel_trio.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    RateLimitError,
    ServerOverloadedError,
)

if TYPE_CHECKING:
    from support.published import Json
    from trio.testing import MockClock


BAD_FIELDS: list[tuple[Json, str | None]] = [
    ({"stream": True}, "background"),
    ({"model": "other"}, "model"),
    ({"top_p": 3}, "top_p"),
    ({"input": []}, "input"),
    ({"input": " "}, "input"),
    ({"input": None}, "input"),
    ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input[0].id"),
    ({"input": [message("hi", "nobody")]}, "input[0].role"),
    ({"logit_bias": {"7": 1}}, "logit_bias"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ({"conversation": "talk", "previous_response_id": "resp_1"}, "conversation"),
    ({"conversation": "no such id!"}, "conversation"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 1}}}}, None),
]


async def test_what_is_refused_in_the_foreground_is_refused_at_create(mock_clock: MockClock) -> None:
    """Before everything else: whatever is full or broken besides."""
    bench = JobBench(slots=1, depth=0, max_jobs=1)
    async with bench.open():
        await bench.start()
        bench.engine.state = "stopped"
        for fields, param in BAD_FIELDS:
            refused = await assert_refused(bench, InvalidRequestError, **fields)
            if param is not None:
                assert refused.param == param, fields


async def test_too_many_jobs_come_before_a_full_queue(mock_clock: MockClock) -> None:
    bench = JobBench(slots=1, depth=0, max_jobs=1)
    async with bench.open():
        response_id, _ = await bench.start()
        refused = await assert_refused(bench, RateLimitError)
        assert refused.code == "rate_limit_exceeded"
        bench.cancel(response_id)
        await bench.settled()
        holder = await bench.prepare(stream=True)
        refused = await assert_refused(bench, ServerOverloadedError)
        assert refused.code == "server_overloaded"
        holder.close()
        bench.engine.state = "stopped"
        refused = await assert_refused(bench, EngineUnavailableError)
        assert refused.code == "engine_unavailable"
        bench.engine.state = "running"
        await bench.start()


async def test_too_much_memory_in_jobs(mock_clock: MockClock) -> None:
    text = "x" * 4000
    bench = JobBench(slots=9, job_bytes=22_000)
    async with bench.open():
        ids = []
        while bench.active.retained_bytes < 15_000:
            ids.append((await bench.start(input=text))[0])
        assert len(ids) == 3
        refused = await assert_refused(bench, RateLimitError, input=text)
        assert refused.code == "rate_limit_exceeded"
        assert (await bench.create(input="small"))["status"] == "queued"
        bench.cancel(ids[0])
        await bench.settled()
        await bench.create(input=text)


async def test_a_history_counts_once_however_many_jobs_continue_it(mock_clock: MockClock) -> None:
    bench = JobBench(slots=9, job_bytes=30_000)
    first = await bench.answer("Hello", input="x" * 20_000)
    async with bench.open():
        for _ in range(4):
            await bench.start(previous_response_id=first["id"])
        await assert_refused(bench, RateLimitError, input="x" * 20_000)


@pytest.mark.parametrize(
    ("bench_fields", "code"),
    [
        ({"max_jobs": 0}, None),
        ({"responses": limits(max_bytes=0)}, None),
        ({"responses": limits(max_entries=0)}, "store_disabled"),
    ],
)
async def test_no_background_mode(mock_clock: MockClock, bench_fields: Json, code: str | None) -> None:
    bench = JobBench(**bench_fields)
    async with bench.open():
        for store in (True, False):
            refused = await assert_refused(bench, InvalidRequestError, store=store)
            assert (refused.param, refused.code) == ("background", code)
        assert (await bench.answer("Hello"))["status"] == "completed"


async def test_outside_of_the_jobs_nursery_nothing_starts(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        await finish(bench)
    run = await bench.prepare_job()
    with pytest.raises(RuntimeError, match="Jobs are not running"):
        run.detach()
    run.close()
    bench.assert_idle()


async def test_a_foreground_response_cannot_be_detached(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        run = await bench.prepare()
        with pytest.raises(RuntimeError, match="Only a background response"):
            run.detach()
        run.close()
