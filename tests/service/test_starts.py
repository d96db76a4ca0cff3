"""The way of jobs to the engine: in order of creation, whatever trio's scheduler and the renders do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from support.job_bench import UNRENDERABLE, JobBench

from mlxcel_trio.core.admission import Admission
from mlxcel_trio.core.jobs import ActiveJobs
from mlxcel_trio.core.sampling import LogitAdjustments, SamplingParameters
from mlxcel_trio.core.transcript import EMPTY
from mlxcel_trio.engine.tokenizer import RenderedPrompt
from mlxcel_trio.errors import InvalidRequestError, ServerOverloadedError
from mlxcel_trio.service.admission import Slots
from mlxcel_trio.service.generation import Generation
from mlxcel_trio.service.starts import JobStart, Turns

if TYPE_CHECKING:
    from trio.testing import MockClock

MANY = 20

GENERATION = Generation(
    RenderedPrompt((1,), opens_reasoning=False), 1, SamplingParameters(), LogitAdjustments(), None, ()
)


async def create_many(bench: JobBench) -> list[str]:
    """Jobs of one tick, which say their numbers; their ids."""
    return [(await bench.create(input=str(number)))["id"] for number in range(MANY)]


def asked(bench: JobBench) -> list[int]:
    """The numbers of the jobs that the engine got, in that order."""
    return [
        int(bench.prompt(index)[-1].removeprefix("user: ")) for index in range(len(bench.engine.sequences))
    ]


# Turns


@given(st.permutations(range(6)))
def test_turns_come_in_order_whoever_leaves_when(leaving: list[int]) -> None:
    turns = Turns()
    waiting = dict(enumerate(turns.take() for _ in leaving))
    for number in leaving:
        first, *others = waiting.values()
        assert first.is_set()
        assert not any(turn.is_set() for turn in others)
        turn = waiting.pop(number)
        turns.leave(turn)
        turns.leave(turn)
    assert turns.take().is_set()


# One start


class StartBench:
    """One start that renders at once, between slots and job places of one."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.slots = Slots(Admission(1, 0))
        self.turns = Turns()
        self.active = ActiveJobs(1, 10_000)
        self.refuses = refuses
        self.start = JobStart(
            self.render, self.slots, self.turns, self.active, self.active.admit(EMPTY, b"{}")
        )

    async def render(self) -> Generation:
        await trio.lowlevel.checkpoint()
        if self.refuses:
            raise InvalidRequestError("No.")
        return GENERATION

    def assert_free(self) -> None:
        """The next one can have everything."""
        assert (self.slots.running, self.slots.waiting, len(self.active)) == (0, 0, 0)
        assert self.turns.take().is_set()


async def test_a_start_from_end_to_end() -> None:
    bench = StartBench()
    assert (bench.slots.running, len(bench.active)) == (0, 1)
    bench.start.enter_queue()
    assert bench.slots.running == 1
    behind = bench.turns.take()
    assert await bench.start.wait() is GENERATION
    assert not behind.is_set()
    bench.start.entered()
    assert behind.is_set()
    assert (bench.slots.running, len(bench.active)) == (1, 1)
    bench.start.close()
    bench.turns.leave(behind)
    bench.assert_free()


async def test_a_start_that_cannot_be_rendered() -> None:
    bench = StartBench(refuses=True)
    bench.start.enter_queue()
    with pytest.raises(InvalidRequestError):
        await bench.start.wait()
    bench.start.close()
    bench.assert_free()


async def test_a_start_whose_queue_is_full() -> None:
    bench = StartBench()
    holder = bench.slots.admit()
    bench.start.enter_queue()
    assert bench.turns.take().is_set()  # it stands in nobody's way
    with pytest.raises(ServerOverloadedError):
        await bench.start.wait()
    bench.start.close()
    assert (bench.slots.running, bench.slots.waiting, len(bench.active)) == (1, 0, 0)
    bench.slots.release(holder)


async def test_a_start_that_skips_the_queue() -> None:
    bench = StartBench()
    with pytest.raises(RuntimeError, match="enter_queue"):
        await bench.start.wait()
    bench.start.close()
    bench.assert_free()


@pytest.mark.parametrize("stage", ["placed", "queued", "rendered", "entered"])
async def test_a_start_is_closed_at_any_stage_once(stage: str) -> None:
    bench = StartBench()
    if stage != "placed":
        bench.start.enter_queue()
    if stage in ("rendered", "entered"):
        await bench.start.wait()
    if stage == "entered":
        bench.start.entered()
    bench.start.close()
    ticket = bench.slots.admit()
    place = bench.active.admit(EMPTY, b"{}")
    turn = bench.turns.take()
    bench.start.close()
    assert (bench.slots.running, len(bench.active), turn.is_set()) == (1, 1, True)
    bench.slots.release(ticket)
    bench.active.release(place)
    bench.turns.leave(turn)
    bench.assert_free()


# Many of them


async def test_jobs_of_one_tick_enter_in_order(mock_clock: MockClock) -> None:
    bench = JobBench(slots=MANY)
    async with bench.open():
        await create_many(bench)
        await bench.settled()
        assert asked(bench) == list(range(MANY))


async def test_jobs_wait_for_the_one_that_renders_slowest(mock_clock: MockClock) -> None:
    bench = JobBench(slots=MANY)
    gate = bench.tokenizer.hold("0")
    async with bench.open():
        await create_many(bench)
        await trio.testing.wait_all_tasks_blocked()
        assert asked(bench) == []
        gate.set()
        await bench.settled()
        assert asked(bench) == list(range(MANY))


@pytest.mark.parametrize("slots", [1, 3])
async def test_jobs_get_slots_in_order(mock_clock: MockClock, slots: int) -> None:
    bench = JobBench(slots=slots, depth=MANY)
    async with bench.open():
        ids = await create_many(bench)
        for number in range(MANY):
            await bench.settled()
            assert asked(bench) == list(range(min(number + slots, MANY)))
            bench.engine.sequences[number].stop()
        await bench.settled()
        assert set(bench.statuses(*ids)) == {"completed"}


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_job_that_goes_lets_those_behind_pass(mock_clock: MockClock, gone: int) -> None:
    bench = JobBench(slots=4)
    gate = bench.tokenizer.hold("0")
    async with bench.open():
        ids = [(await bench.create(input=str(number)))["id"] for number in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        bench.cancel(ids[gone])
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        await bench.settled()
        assert asked(bench) == [number for number in range(3) if number != gone]


async def test_a_job_that_cannot_be_rendered_lets_those_behind_pass(mock_clock: MockClock) -> None:
    bench = JobBench(slots=4)
    async with bench.open():
        for text in (UNRENDERABLE, "1", UNRENDERABLE, UNRENDERABLE, "2"):
            await bench.create(input=text)
        await bench.settled()
        assert asked(bench) == [1, 2]


async def test_a_job_takes_its_queue_place_when_its_task_starts(mock_clock: MockClock) -> None:
    bench = JobBench(slots=1, depth=0)
    async with bench.open():
        created = await bench.create()
        ticket = bench.slots.admit()  # whoever comes in between
        await bench.settled()
        assert bench.poll(created["id"])["error"]["code"] == "server_overloaded"
        bench.slots.release(ticket)


async def test_foreground_responses_and_jobs_take_slots_in_order_of_admission(mock_clock: MockClock) -> None:
    bench = JobBench(slots=1, depth=8)
    async with bench.open():
        await bench.create(input="0")
        await bench.settled()
        foreground = await bench.prepare(input="1")
        await bench.create(input="2")
        await bench.settled()
        async with foreground.open():
            for number in range(3):
                await bench.settled()
                assert asked(bench) == list(range(number + 1))
                bench.engine.sequences[number].stop()
            await bench.settled()
