"""The engine thread and its hand-off, on a backend whose steps the test lets through one by one."""

from __future__ import annotations

import math
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from mlxcel_trio.core.sampling import SamplingParameters
from mlxcel_trio.engine.backend import LoadedModel, Prefilled, Row, RowEvent, RowFailed, Sampled
from mlxcel_trio.engine.bridge import EngineBridge
from mlxcel_trio.errors import CorruptModelError, EngineFailureError, EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

MODEL = LoadedModel(context_window=64, vocabulary_size=10, device="fake", dtype="none", blas="none")
PATIENCE = 5.0


class GatedBackend:
    """Samples token 0, 1, 2, ... for every row. A step waits for a permit of ``gate`` when one is set."""

    def __init__(self) -> None:
        self.gate: threading.Semaphore | None = None
        self.in_step = threading.Semaphore(0)
        self.rows: dict[int, tuple[Row, int]] = {}
        self.threads: set[int] = set()
        self.closed = 0
        self.on_load: Callable[[], None] = lambda: None
        self.on_step: Callable[[], list[RowEvent]] = list

    def load(self) -> LoadedModel:
        self.threads.add(threading.get_ident())
        self.on_load()
        return MODEL

    def insert(self, row: Row) -> None:
        self.threads.add(threading.get_ident())
        self.rows[row.row_id] = (row, 0)

    def remove(self, row_id: int) -> None:
        self.threads.add(threading.get_ident())
        self.rows.pop(row_id, None)

    def step(self) -> list[RowEvent]:
        self.threads.add(threading.get_ident())
        self.in_step.release()
        if self.gate is not None:
            assert self.gate.acquire(timeout=PATIENCE)
        events = self.on_step()
        for row_id, (row, done) in list(self.rows.items()):
            last = done + 1 == row.max_tokens
            events.append(Sampled(row_id, done, "length" if last else None))
            self.rows[row_id] = (row, done + 1)
            if last:
                del self.rows[row_id]
        return events

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1


def row(row_id: int, max_tokens: int = 3) -> Row:
    return Row(row_id, [1, 2], max_tokens, SamplingParameters())


@asynccontextmanager
async def running(backend: GatedBackend, decode_timeout: float = math.inf) -> AsyncIterator[EngineBridge]:
    bridge = EngineBridge(backend, decode_timeout=decode_timeout)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            assert await nursery.start(bridge.run) == MODEL
            yield bridge
            if backend.gate is not None:
                backend.gate.release(100)
            nursery.cancel_scope.cancel()
    assert backend.closed == 1


def state_of(bridge: EngineBridge) -> str:
    """The state now; what was asserted of it before says nothing about it."""
    return bridge.state


async def entered_step(backend: GatedBackend) -> None:
    await trio.to_thread.run_sync(backend.in_step.acquire)


async def test_rows_get_their_own_events_in_order_on_one_thread() -> None:
    backend = GatedBackend()
    got: dict[int, list[RowEvent]] = {1: [], 2: []}
    async with running(backend) as bridge:
        bridge.insert_nowait(row(1), got[1].append)
        bridge.insert_nowait(row(2, max_tokens=2), got[2].append)
        await bridge.wait_drained()
        assert bridge.rows == 0
        assert bridge.sampled_tokens == 5
    assert got[1] == [Sampled(1, 0), Sampled(1, 1), Sampled(1, 2, "length")]
    assert got[2] == [Sampled(2, 0), Sampled(2, 1, "length")]
    assert len(backend.threads) == 1
    assert threading.get_ident() not in backend.threads


async def test_an_idle_engine_takes_no_steps() -> None:
    backend = GatedBackend()
    async with running(backend) as bridge:
        bridge.insert_nowait(row(1), lambda _: None)
        await bridge.wait_drained()
        steps = bridge.steps
        bridge.insert_nowait(row(2), lambda _: None)
        await bridge.wait_drained()
        assert (steps, bridge.steps) == (3, 6)


async def test_a_dropped_row_is_out_by_the_end_of_the_step_in_progress() -> None:
    backend = GatedBackend()
    backend.gate = threading.Semaphore(0)
    got: list[RowEvent] = []
    async with running(backend) as bridge:
        bridge.insert_nowait(row(1, max_tokens=100), got.append)
        await entered_step(backend)
        bridge.remove_nowait(1)
        assert bridge.rows == 1  # the engine still holds it
        backend.gate.release()
        await bridge.wait_drained()
        assert bridge.steps == 1
        assert backend.rows == {}
    assert got == []  # not even what the step in progress had sampled


async def test_a_row_dropped_before_it_was_taken_costs_no_step() -> None:
    backend = GatedBackend()
    backend.gate = threading.Semaphore(0)
    async with running(backend) as bridge:
        bridge.insert_nowait(row(1, max_tokens=100), lambda _: None)
        await entered_step(backend)
        bridge.insert_nowait(row(2), lambda _: None)
        bridge.remove_nowait(2)
        bridge.remove_nowait(1)
        backend.gate.release()
        await bridge.wait_drained()
        assert bridge.steps == 1


async def test_removing_twice_or_after_the_end_is_harmless() -> None:
    backend = GatedBackend()
    async with running(backend) as bridge:
        bridge.insert_nowait(row(1), lambda _: None)
        await bridge.wait_drained()
        bridge.remove_nowait(1)
        bridge.remove_nowait(77)
        assert bridge.rows == 0


async def test_one_failed_row_leaves_the_others_alone() -> None:
    backend = GatedBackend()
    got: dict[int, list[RowEvent]] = {1: [], 2: []}

    def fail_row_one() -> list[RowEvent]:
        return [RowFailed(1, "bad row")] if backend.rows.pop(1, None) else []

    backend.on_step = fail_row_one
    async with running(backend) as bridge:
        bridge.insert_nowait(row(1), got[1].append)
        bridge.insert_nowait(row(2, max_tokens=1), got[2].append)
        await bridge.wait_drained()
    assert got == {1: [RowFailed(1, "bad row")], 2: [Sampled(2, 0, "length")]}


async def test_a_dead_backend_settles_every_row_and_refuses_new_ones() -> None:
    backend = GatedBackend()
    backend.gate = threading.Semaphore(0)
    got: list[RowEvent] = []

    def die() -> list[RowEvent]:
        raise ZeroDivisionError("boom")

    backend.on_step = die
    bridge = EngineBridge(backend)
    with trio.fail_after(PATIENCE), pytest.RaisesGroup(pytest.RaisesExc(EngineFailureError, match="boom")):
        async with trio.open_nursery() as nursery:
            await nursery.start(bridge.run)
            bridge.insert_nowait(row(1), got.append)
            bridge.insert_nowait(row(2), got.append)
            backend.gate.release()
    assert got == [RowFailed(1, "the engine has stopped"), RowFailed(2, "the engine has stopped")]
    assert bridge.state == "stopped"
    assert bridge.rows == 0
    assert backend.closed == 1
    with pytest.raises(EngineUnavailableError):
        bridge.insert_nowait(row(3), got.append)


async def test_a_model_that_does_not_load_is_the_callers_error() -> None:
    backend = GatedBackend()

    def fail() -> None:
        raise CorruptModelError("no such weights")

    backend.on_load = fail
    bridge = EngineBridge(backend)
    with trio.fail_after(PATIENCE), pytest.raises(CorruptModelError):
        await bridge.run()
    assert backend.closed == 1


async def test_rows_are_refused_while_loading() -> None:
    backend = GatedBackend()
    loading, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        loading.set()
        assert go_on.wait(PATIENCE)

    backend.on_load = wait
    bridge = EngineBridge(backend)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bridge.run)
            await trio.to_thread.run_sync(loading.wait)
            with pytest.raises(EngineUnavailableError):
                bridge.insert_nowait(row(1), lambda _: None)
            with pytest.raises(EngineUnavailableError):
                _ = bridge.model
            nursery.cancel_scope.cancel()
            go_on.set()
    assert backend.closed == 1


async def test_cancel_joins_the_thread_after_the_step_in_progress() -> None:
    backend = GatedBackend()
    backend.gate = threading.Semaphore(0)
    got: list[RowEvent] = []
    bridge = EngineBridge(backend)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(bridge.run)
            bridge.insert_nowait(row(1, max_tokens=100), got.append)
            await entered_step(backend)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()  # the stop is on its way to the thread
            backend.gate.release()
    assert backend.closed == 1
    assert bridge.steps == 1
    assert got[-1] == RowFailed(1, "the engine has stopped")


async def test_a_hanging_step_settles_every_row_and_the_engine_may_recover() -> None:
    backend = GatedBackend()
    backend.gate = threading.Semaphore(0)
    failed = trio.Event()
    got: list[RowEvent] = []

    def deliver(event: RowEvent) -> None:
        got.append(event)
        failed.set()

    async with running(backend, decode_timeout=0.05) as bridge:
        bridge.insert_nowait(row(1, max_tokens=100), deliver)
        await failed.wait()
        assert got == [RowFailed(1, "the engine hangs")]
        assert state_of(bridge) == "hanging"
        with pytest.raises(EngineUnavailableError, match="hangs"):
            bridge.insert_nowait(row(2), deliver)
        assert bridge.rows == 1  # the engine still holds it
        backend.gate.release(100)
        await bridge.wait_drained()
        assert backend.rows == {}
        assert state_of(bridge) == "running"
        bridge.insert_nowait(row(3, max_tokens=1), deliver)
        await bridge.wait_drained()
    assert got[1:] == [Sampled(3, 0, "length")]


async def test_a_step_that_is_short_enough_never_hangs() -> None:
    backend = GatedBackend()
    got: list[RowEvent] = []
    async with running(backend, decode_timeout=0.05) as bridge:
        bridge.insert_nowait(row(1, max_tokens=100), got.append)
        await bridge.wait_drained()
        idle = trio.Event()
        with trio.move_on_after(0.2):  # longer than the timeout, and the engine has nothing to do
            await idle.wait()
        assert bridge.state == "running"
    assert len(got) == 100


async def test_prefill_reports_pass_through() -> None:
    backend = GatedBackend()
    backend.on_step = lambda: [Prefilled(1, 1, 2)]
    got: list[RowEvent] = []
    async with running(backend) as bridge:
        bridge.insert_nowait(row(1, max_tokens=1), got.append)
        await bridge.wait_drained()
    assert got == [Prefilled(1, 1, 2), Sampled(1, 0, "length")]
