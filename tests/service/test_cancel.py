"""Cancels: at once, whatever the response is doing, and never both cancelled and completed."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from support.checkpoints import interrupted_at
from support.service_bench import ServiceBench, checked, collect, final, limits, open_run, play, texts

from mlxcel_trio.errors import EngineFailureError, NotFoundError
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.events import ResponseIncomplete

if TYPE_CHECKING:
    from support.published import Json
    from support.service_bench import End

    from mlxcel_trio.protocol.events import Event
    from mlxcel_trio.service.pipeline import ResponseRun
    from mlxcel_trio.testing.fake_engine import FakeSequence


async def arrive(bench: ServiceBench, stage: str) -> FakeSequence | None:
    """Let the one open response get as far as ``stage``; its sequence, once it has one."""
    if stage == "queued":
        await trio.testing.wait_all_tasks_blocked()
        assert bench.slots.waiting == 1
        return None
    sequence = await bench.engine.next_sequence()
    if stage == "prefill":
        sequence.prefill(0)
    elif stage != "inserted":
        sequence.prefill()
        sequence.say(*STAGES[stage])
    await trio.testing.wait_all_tasks_blocked()
    return sequence


# What has been said at each of them.
STAGES: dict[str, tuple[str, ...]] = {
    "queued": (),
    "inserted": (),
    "prefill": (),
    "reasoning": ("<think>", "h", "m"),
    "answer": ("<think>", "hm", "</think>", "Hel", "lo"),
    "held back": ("Hel", "lo <th"),
}
OUTPUT: dict[str, list[tuple[str, str, str]]] = {
    "queued": [],
    "inserted": [],
    "prefill": [],
    "reasoning": [("reasoning", "incomplete", "hm")],
    "answer": [("reasoning", "completed", "hm"), ("message", "incomplete", "Hello")],
    "held back": [("message", "incomplete", "Hello ")],
}
REASONING_TOKENS = {"reasoning": 3, "answer": 3}


def usage(stage: str) -> Json:
    """The counts of a prompt of one token, once the engine has it, and of what was said."""
    given, sampled = int(stage != "queued"), len(STAGES[stage])
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": REASONING_TOKENS.get(stage, 0)},
        "total_tokens": given + sampled,
    }


@pytest.mark.parametrize("stage", STAGES)
async def test_a_stream_ends_at_once_with_what_it_has(mock_clock: trio.testing.MockClock, stage: str) -> None:
    bench = ServiceBench(slots=1)
    holder = await bench.prepare() if stage == "queued" else None
    run = await bench.prepare()
    async with run.open() as events:
        sequence = await arrive(bench, stage)
        before = list(drained(events))
        answer = bench.stored.cancel(None, run.response_id)
        # Nobody has waited for anything: the last event is there already, and so is the stored response.
        after = list(drained(events))
        cancelled = checked(answer)
        assert bench.stored.retrieve(None, run.response_id) == answer
        assert isinstance(after[-1], ResponseIncomplete)
        assert encode(after[-1].response) == answer
        assert final([*before, *after]) == cancelled
        # The slot is free while the client is still reading.
        await trio.testing.wait_all_tasks_blocked()
        assert bench.slots.waiting == 0
        assert bench.slots.running == (1 if holder else 0)
        assert sequence is None or sequence.dropped.is_set()
        assert [event async for event in events] == []
    assert cancelled["status"] == "cancelled"
    assert texts(cancelled) == OUTPUT[stage]
    assert cancelled["usage"] == usage(stage)
    assert (cancelled["completed_at"], cancelled["error"], cancelled["incomplete_details"]) == (None,) * 3
    if holder:
        holder.close()
    bench.assert_idle()


def drained(events: trio.MemoryReceiveChannel[Event]) -> list[Event]:
    """What is in the channel now."""
    received: list[Event] = []
    while True:
        try:
            received.append(events.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return received


@pytest.mark.parametrize("stage", STAGES)
async def test_a_json_request_is_answered_with_the_cancelled_object(
    mock_clock: trio.testing.MockClock, stage: str
) -> None:
    bench = ServiceBench(slots=1)
    holder = await bench.prepare() if stage == "queued" else None
    run = await bench.prepare(stream=False)
    async with open_run(run) as results:
        await arrive(bench, stage)
        cancelled = bench.cancel(run.response_id)
    assert results == [cancelled]
    assert (cancelled["status"], texts(cancelled)) == ("cancelled", OUTPUT[stage])
    assert bench.retrieve(run.response_id) == cancelled
    if holder:
        holder.close()
    bench.assert_idle()


async def test_what_waits_behind_gets_the_slot(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(slots=1)
    first, second, third = [await bench.prepare() for _ in range(3)]
    async with open_run(first), open_run(second), open_run(third) as results:
        await bench.engine.next_sequence()
        await trio.testing.wait_all_tasks_blocked()
        bench.cancel(second.response_id)
        bench.cancel(first.response_id)
        play(await bench.engine.next_sequence(), "Hello")
    assert results[0]["status"] == "completed"
    assert len(bench.engine.sequences) == 2
    bench.assert_idle()


async def test_what_the_engine_says_afterwards_is_not_heard(mock_clock: trio.testing.MockClock) -> None:
    """Tokens of the step in progress come after the response has ended."""
    bench = ServiceBench()
    run = await bench.prepare(conversation="talk")
    with capture_logs() as logs:
        async with open_run(run) as results:
            sequence = await bench.engine.next_sequence()
            sequence.say("Hel")
            await trio.testing.wait_all_tasks_blocked()
            sequence.say("lo", "there")
            cancelled = bench.cancel(run.response_id)
            sequence.say("never")
            sequence.stop()
    assert results == [cancelled]
    assert texts(cancelled) == [("message", "incomplete", "Hel")]
    assert cancelled["usage"]["output_tokens"] == 1
    assert bench.retrieve(run.response_id) == cancelled
    assert logs == []
    bench.assert_idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_last_token_may_be_there_already(mock_clock: trio.testing.MockClock, stream: bool) -> None:
    """The model has ended, but nobody has read that yet."""
    bench = ServiceBench()
    run = await bench.prepare(stream=stream)
    async with open_run(run) as results:
        sequence = await bench.engine.next_sequence()
        sequence.say("Hello")
        await trio.testing.wait_all_tasks_blocked()
        sequence.stop()
        cancelled = bench.cancel(run.response_id)
    assert results == [cancelled]
    assert cancelled["status"] == "cancelled"
    bench.assert_idle()


async def test_cancelling_again_changes_nothing(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    run = await bench.prepare()
    async with open_run(run):
        (await bench.engine.next_sequence()).say("Hel")
        await trio.testing.wait_all_tasks_blocked()
        answers = [bench.stored.cancel(None, run.response_id) for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked()
        answers.append(bench.stored.cancel(None, run.response_id))
    answers.append(bench.stored.cancel(None, run.response_id))
    assert set(answers) == {bench.stored.retrieve(None, run.response_id)}
    assert len(bench.stored) == 1


async def test_what_has_ended_stays_as_it_is(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    for end in ("stop", "length", "fail"):
        run = await bench.prepare()
        async with run.open() as events:
            play(await bench.engine.next_sequence(), "Hello", end=end)
            await trio.testing.wait_all_tasks_blocked()
            # The client has not even begun to read.
            while_open = bench.cancel(run.response_id)
            assert final([event async for event in events]) == while_open
        assert while_open["status"] != "cancelled"
        assert bench.cancel(run.response_id) == while_open == bench.retrieve(run.response_id)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_that_has_not_begun(mock_clock: trio.testing.MockClock, stream: bool) -> None:
    """It is found from its admission on: its handler may not have had a turn since."""
    bench = ServiceBench()
    run = await bench.prepare(stream=stream, conversation="talk")
    cancelled = bench.cancel(run.response_id)
    async with open_run(run) as results:
        pass
    assert results == [cancelled] == [bench.retrieve(run.response_id)]
    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    assert len(bench.conversations) == 0
    bench.assert_idle()


@pytest.mark.parametrize("response_id", ["resp_unknown", "", "x" * 10_000])
async def test_an_unknown_id(mock_clock: trio.testing.MockClock, response_id: str) -> None:
    bench = ServiceBench()
    with pytest.raises(NotFoundError) as caught:
        bench.stored.cancel(None, response_id)
    assert caught.value.code == "response_not_found"


@pytest.mark.parametrize(("owner", "other"), [("one", "two"), ("one", None), (None, "one")])
async def test_a_response_of_another_key_goes_on(
    mock_clock: trio.testing.MockClock, owner: str | None, other: str | None
) -> None:
    bench = ServiceBench()
    run = await bench.prepare(owner)
    async with open_run(run) as results:
        sequence = await bench.engine.next_sequence()
        with pytest.raises(NotFoundError):
            bench.stored.cancel(other, run.response_id)
        play(sequence, "Hello")
    assert results[0]["status"] == "completed"
    with pytest.raises(NotFoundError):
        bench.stored.cancel(other, run.response_id)
    assert bench.cancel(run.response_id, owner) == results[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_store_false(mock_clock: trio.testing.MockClock, stream: bool) -> None:
    bench = ServiceBench()
    run = await bench.prepare(store=False, stream=stream)
    async with open_run(run) as results:
        (await bench.engine.next_sequence()).say("Hel")
        await trio.testing.wait_all_tasks_blocked()
        cancelled = bench.cancel(run.response_id)
    assert results == [cancelled]
    assert (cancelled["status"], cancelled["store"]) == ("cancelled", False)
    assert texts(cancelled) == [("message", "incomplete", "Hel")]
    for look in (bench.stored.retrieve, bench.stored.cancel):
        with pytest.raises(NotFoundError):
            look(None, run.response_id)
    assert len(bench.stored) == 0
    bench.assert_idle()


async def test_a_store_that_keeps_nothing(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(responses=limits(max_bytes=0))
    run = await bench.prepare()
    async with open_run(run) as results:
        await bench.engine.next_sequence()
        cancelled = bench.cancel(run.response_id)
    assert results == [cancelled]
    with pytest.raises(NotFoundError):
        bench.stored.cancel(None, run.response_id)


async def test_only_that_response_is_cancelled(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(slots=3)
    runs = [await bench.prepare(input=str(number)) for number in range(3)]
    async with open_run(runs[0]) as zero, open_run(runs[1]) as one, open_run(runs[2]) as two:
        sequences = [await bench.engine.next_sequence() for _ in runs]
        by_prompt = {bench.prompt(sequence.row.row_id)[0]: sequence for sequence in sequences}
        bench.cancel(runs[1].response_id)
        await trio.testing.wait_all_tasks_blocked()
        dropped = [by_prompt[f"user: {number}"].dropped.is_set() for number in range(3)]
        assert dropped == [False, True, False]
        for number in (0, 2):
            play(by_prompt[f"user: {number}"], "Hello")
    assert [results[0]["status"] for results in (zero, one, two)] == ["completed", "cancelled", "completed"]


class Race:
    """A response in a conversation that is cancelled at some step of its tasks, by its id."""

    def __init__(self, bench: ServiceBench, run: ResponseRun, holder: ResponseRun, end: End) -> None:
        self._bench = bench
        self._run = run
        self._holder = holder
        self._end = end
        self.final: Json | None = None
        """What its client gets, if that is no error."""
        self.answer: bytes | None = None
        """What the cancel was answered, if it came to that and found anything."""
        self.ended_first = False

    async def run(self) -> None:
        """The response, from the queue to its end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._play)
            if self._run.stream:
                self.final = final(await collect(self._run, ping_interval=3600))
            else:
                with suppress(EngineFailureError):
                    self.final = checked(encode(await self._run.run()))
            nursery.cancel_scope.cancel()

    async def _play(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self._holder.close()
        sequence = await self._bench.engine.next_sequence()
        sequence.prefill()
        for chunk in ("<think>", "hm", "</think>", "Hello"):
            sequence.say(chunk)
            await trio.testing.wait_all_tasks_blocked()
        if self._end == "stop":
            sequence.stop()
        else:
            sequence.fail()
        await trio.sleep_forever()

    def cancel(self, _scope: trio.CancelScope) -> None:
        """What the other client does."""
        self.ended_first = self._run.response.status != "in_progress"
        with suppress(NotFoundError):
            self.answer = self._bench.stored.cancel(None, self._run.response_id)


async def race(step: int, *, stream: bool, end: End, statuses: set[str]) -> bool:
    """Cancel at ``step``; whether it came to that. Adds how the response ended to ``statuses``."""
    bench = ServiceBench(slots=1)
    holder = await bench.prepare()
    run = await bench.prepare(stream=stream, conversation="talk")
    racing = Race(bench, run, holder, end)
    reached = await interrupted_at(step, racing.run, racing.cancel)
    holder.close()  # a response that was cancelled in the queue did not wait for that
    bench.assert_idle()
    status = run.response.status
    statuses.add(status)
    assert (status == "cancelled") == (reached and not racing.ended_first)
    assert len(bench.conversations) == (1 if status == "completed" else 0)
    if status == "failed" and not stream:
        assert (racing.final, racing.answer, len(bench.stored)) == (None, None, 0)
        return reached
    assert len(bench.stored) == 1
    stored = bench.stored.retrieve(None, run.response_id)
    assert checked(stored) == racing.final == bench.cancel(run.response_id)
    assert bench.stored.retrieve(None, run.response_id) == stored == (racing.answer if reached else stored)
    return reached


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("end", "status"), [("stop", "completed"), ("fail", "failed")])
@pytest.mark.parametrize("attempt", range(3))  # tasks that can run take turns in a random order
async def test_a_cancel_that_races_with_everything(
    mock_clock: trio.testing.MockClock, stream: bool, end: End, status: str, attempt: int
) -> None:
    statuses: set[str] = set()
    for step in itertools.count():
        if not await race(step, stream=stream, end=end, statuses=statuses):
            break
    assert step > 30
    assert statuses == {"cancelled", status}
