"""The nursery of background responses: what leaving it ends, what is logged, and what nobody holds."""

from __future__ import annotations

import gc
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING

import trio
import trio.testing
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs
from support.job_bench import UNRENDERABLE, JobBench
from support.job_checks import assert_gone
from support.service_bench import play

if TYPE_CHECKING:
    from trio.testing import MockClock


# The nursery, the log and memory


async def test_leaving_ends_what_is_left(mock_clock: MockClock) -> None:
    bench = JobBench(slots=2)
    with capture_logs() as logs:
        async with bench.open():
            ids = [(await bench.start("part", input=text))[0] for text in ("one", "two")]
            ids += [(await bench.create())["id"] for _ in range(3)]
            await bench.settled()
            ids += [(await bench.create())["id"] for _ in range(2)]  # whose tasks have not begun
            done = await finish_first(bench)
        assert bench.poll(done)["status"] == "completed"
        for response_id in ids:
            if response_id != done:
                assert_gone(bench, response_id)
    ends = {log["response_id"]: (log["status"], log["reason"]) for log in logs if log["event"] == "job"}
    assert ends.pop(done) == ("completed", None)
    assert ends == {
        response_id: ("in_progress" if response_id == ids[1] else "queued", "server_stopped")
        for response_id in ids
        if response_id != done
    }


async def finish_first(bench: JobBench) -> str:
    """End the job that the engine got first."""
    bench.engine.sequences[0].stop()
    while True:
        await trio.lowlevel.checkpoint()
        if bench.poll("resp_1")["status"] == "completed":
            return "resp_1"


async def test_one_line_is_logged_when_a_job_ends(mock_clock: MockClock) -> None:
    bench = JobBench(slots=1)
    with capture_logs(processors=[merge_contextvars]) as logs:
        async with bench.open():
            with bound_contextvars(request_id="req_1"):
                ids = [(await bench.create())["id"]]
            ids += [(await bench.create())["id"] for _ in range(2)]
            sequence = await bench.engine.next_sequence()
            mock_clock.jump(2.5)
            sequence.prefill()
            await bench.settled()
            mock_clock.jump(4)
            sequence.say("<think>", "hm", finish="length")
            second = await bench.engine.next_sequence()
            mock_clock.jump(1)
            bench.cancel(ids[1])
            await bench.settled()
            second.stop()
            (await bench.engine.next_sequence()).fail()
            await bench.settled()
            ids.append((await bench.create(input=UNRENDERABLE))["id"])
            await bench.settled()
    lines = [log for log in logs if log["event"] == "job"]
    assert [log["response_id"] for log in lines] == ids
    keys = ("status", "queued_seconds", "prefill_tokens", "decode_tokens", "reason")
    assert [tuple(log[key] for key in keys) for log in lines] == [
        ("incomplete", 2.5, 1, 2, "max_output_tokens"),
        ("cancelled", 7.5, 0, 0, None),
        ("failed", 7.5, 0, 0, "server_error"),
        ("failed", 0.0, 0, 0, "invalid_prompt"),
    ]
    assert [log.get("request_id") for log in lines] == ["req_1", None, None, None]
    assert all(log["log_level"] == "info" for log in lines)


class Body:
    """Stands for what a request holds."""


async def test_a_job_keeps_nothing_of_its_request(mock_clock: MockClock) -> None:
    bench = JobBench()
    of_request: ContextVar[Body] = ContextVar("of_request")
    bodies: list[weakref.ref[Body]] = []

    async def handle_request() -> None:
        body = Body()
        of_request.set(body)
        bodies.append(weakref.ref(body))
        await bench.create()

    async with bench.open():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handle_request)
        sequence = await bench.engine.next_sequence()
        await bench.settled()
        gc.collect()
        assert bodies[0]() is None
        play(sequence, "Hello")
        await bench.settled()
        assert bench.statuses("resp_1") == ["completed"]


async def test_nobody_has_to_wait_for_a_job(mock_clock: MockClock) -> None:
    """Its creator may be cancelled as soon as it has the answer, and pollers at any time."""
    bench = JobBench()
    async with bench.open():
        async with trio.open_nursery() as nursery:
            created = await bench.create()
            nursery.cancel_scope.cancel()
        play(await bench.engine.next_sequence(), "Hello")
        await bench.settled()
        assert bench.statuses(created["id"]) == ["completed"]
