"""A job that is interrupted at any of its steps gives everything back."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from support.checkpoints import InterruptAtStep
from support.job_bench import JobBench
from support.service_bench import texts

from mlxcel_trio.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

UNFINISHED = ("queued", "in_progress")


class Interrupted:
    """A job in a conversation, and one behind it, on a bench where ``interrupt`` comes at ``step``.

    ``status_then`` is how the first job stood at that moment, ``None`` when it did not come to that.
    """

    def __init__(self, step: int, slots: int, interrupt: Callable[[JobBench, str], object]) -> None:
        self.bench = JobBench(slots=slots)
        self.job, self.other = "resp_1", "resp_2"
        self.status_then: str | None = None
        self._step = step
        self._interrupt = interrupt

    async def run(self) -> None:
        """Both jobs to their ends; checks that nothing is held then."""
        bench = self.bench
        async with bench.open():
            assert bench.jobs._nursery is not None
            at_step = InterruptAtStep(bench.jobs._nursery, self._step, self._interrupt_now)
            trio.lowlevel.add_instrument(at_step)
            try:
                await self._play()
            finally:
                trio.lowlevel.remove_instrument(at_step)
                if at_step.error is not None:
                    raise at_step.error
            assert at_step.reached == (self.status_then is not None)
            bench.assert_idle()
        await bench.settled()  # worker threads end too

    async def _play(self) -> None:
        bench = self.bench
        await bench.create(conversation="talk", input="one")
        await bench.create(input="two")
        await bench.settled()
        while rows := [sequence for sequence in bench.engine.sequences if not sequence.dropped.is_set()]:
            row = rows[0]
            for act in (row.prefill, lambda row=row: row.say("Hel"), lambda row=row: row.say("lo"), row.stop):
                act()
                await bench.settled()

    def _interrupt_now(self) -> None:
        self.status_then = self.bench.poll(self.job)["status"]
        self._interrupt(self.bench, self.job)


def steps() -> itertools.count[int]:
    """0, 1, 2 and so on: the test stops when a step is not reached."""
    return itertools.count()


@pytest.mark.parametrize("slots", [1, 2])
async def test_cancelled_by_its_id(mock_clock: trio.testing.MockClock, slots: int) -> None:
    for step in steps():
        case = Interrupted(step, slots, JobBench.cancel)
        await case.run()
        bench, job = case.bench, case.bench.poll(case.job)
        cancelled = case.status_then in UNFINISHED
        assert job["status"] == ("cancelled" if cancelled else "completed")
        assert texts(job) == ([] if cancelled else [("message", "completed", "Hello")])
        assert len(bench.conversations) == (not cancelled)
        # The other one does not notice.
        assert texts(bench.poll(case.other)) == [("message", "completed", "Hello")]
        if case.status_then is None:
            break
    assert step > 15


@pytest.mark.parametrize("slots", [1, 2])
async def test_cancelled_with_the_jobs_nursery(mock_clock: trio.testing.MockClock, slots: int) -> None:
    seen = set()
    for step in steps():
        case = Interrupted(step, slots, lambda bench, _: cancel_all(bench))
        await case.run()
        ended = is_there(case.bench, case.job)
        assert ended or case.status_then in UNFINISHED
        assert len(case.bench.conversations) == ended
        if ended:
            assert case.bench.poll(case.job)["status"] == "completed"
        if case.status_then is None:
            break
        seen.add((ended, is_there(case.bench, case.other)))
    assert step > 15
    assert {(False, False), (True, False)} <= seen


def cancel_all(bench: JobBench) -> None:
    """End the jobs nursery, and with it everything in the block."""
    assert bench.jobs._nursery is not None
    bench.jobs._nursery.cancel_scope.cancel()


def is_there(bench: JobBench, response_id: str) -> bool:
    """Whether the job has ended and can be polled."""
    try:
        return bool(bench.poll(response_id)["status"] == "completed")
    except NotFoundError:
        return False
