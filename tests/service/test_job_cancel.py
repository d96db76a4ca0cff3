"""Cancelling a background response in any phase, too late, and in a race with its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from support.job_bench import JobBench
from support.job_checks import finish
from support.service_bench import play

if TYPE_CHECKING:
    from trio.testing import MockClock


PHASES = ["created", "waits for a slot", "renders", "waits for its turn", "handed over", "prefill", "decode"]


async def job_that(phase: str, bench: JobBench) -> str:
    """A job in one of the :data:`PHASES` on a bench of two slots."""
    if phase == "waits for a slot":
        for _ in range(2):
            await bench.start()
    if phase == "waits for its turn":
        await bench.create(input="held")
    response_id: str = (await bench.create(input="held" if phase == "renders" else "hi"))["id"]
    if phase in ("handed over", "prefill", "decode"):
        sequence = await bench.engine.next_sequence()
        if phase != "handed over":
            sequence.prefill()
        if phase == "decode":
            sequence.say("<think>", "hm", "</think>", "part")
    if phase != "created":
        await trio.testing.wait_all_tasks_blocked()
    return response_id


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancel_in_any_phase(mock_clock: MockClock, phase: str, store: bool) -> None:
    bench = JobBench(slots=2)
    gate = bench.tokenizer.hold("held")
    async with bench.open():
        response_id = await job_that(phase, bench)
        before = bench.poll(response_id)
        assert before["status"] == ("in_progress" if phase in ("prefill", "decode") else "queued")
        cancelled = bench.cancel(response_id)
        assert cancelled == before | {"status": "cancelled"}
        held = len(bench.active)
        if bench.engine.sequences:
            play(bench.engine.sequences[-1], " never seen")  # on its way already
        assert bench.poll(response_id) == cancelled
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        await bench.settled()
        assert len(bench.active) < held
        assert bench.poll(response_id) == bench.cancel(response_id) == cancelled
        for sequence in bench.engine.sequences:
            if not sequence.dropped.is_set():
                sequence.stop()
        await bench.settled()
        bench.assert_idle()
        assert bench.poll(response_id) == cancelled
    assert bench.poll(response_id) == cancelled


async def test_a_cancel_that_comes_too_late(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        job = await finish(bench, "Hello")
        assert bench.cancel(job["id"]) == job == bench.poll(job["id"])


@pytest.mark.parametrize("first", ["cancel", "end"])
async def test_a_cancel_that_races_the_end(mock_clock: MockClock, first: str) -> None:
    """The engine's last word is out, and the job has not read it or has just done so."""
    bench = JobBench()
    async with bench.open():
        response_id, sequence = await bench.start("Hello")
        sequence.stop()
        if first == "end":
            while bench.poll(response_id)["status"] == "in_progress":
                await trio.lowlevel.checkpoint()
        cancelled = bench.cancel(response_id)
        assert cancelled["status"] == ("cancelled" if first == "cancel" else "completed")
        for _ in range(10):
            await trio.lowlevel.checkpoint()
            assert bench.poll(response_id) == cancelled
