"""Background responses, from create to their end, on a fake engine and a mock clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from support.job_bench import UNRENDERABLE, JobBench
from support.job_checks import NO_USAGE, assert_gone, assert_unfinished, finish
from support.service_bench import listed, message, play, read, texts

from mlxcel_trio.core.emitter import Emitter
from mlxcel_trio.errors import EngineUnavailableError, NotFoundError
from mlxcel_trio.testing.fake_engine import FakeEngine

if TYPE_CHECKING:
    from support.published import Json
    from support.service_bench import End
    from trio.testing import MockClock


# Until it ends


async def test_create_answers_at_once(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        with trio.testing.assert_no_checkpoints():
            created = await bench.create(input="Write a haiku.", metadata={"a": "b"})
        assert_unfinished(created, "queued")
        assert (created["store"], created["metadata"], created["completed_at"]) == (True, {"a": "b"}, None)
        assert bench.poll(created["id"]) == created


async def test_what_a_poll_sees(mock_clock: MockClock) -> None:
    bench = JobBench(slots=1)
    gate = bench.tokenizer.hold("second")
    async with bench.open():
        first, second = [(await bench.create(input=text))["id"] for text in ("first", "second")]
        ahead = await bench.engine.next_sequence()
        assert_unfinished(bench.poll(second), "queued")
        ahead.stop()
        await trio.testing.wait_all_tasks_blocked()  # it has the slot, and is being rendered
        assert bench.statuses(first, second) == ["completed", "queued"]
        gate.set()
        sequence = await bench.engine.next_sequence()
        await bench.settled()
        assert_unfinished(bench.poll(second), "queued")  # the engine has it, and has not begun
        sequence.prefill(0)
        await bench.settled()
        assert_unfinished(bench.poll(second), "in_progress")
        for chunk in ("<think>", "hm", "</think>", "A frog"):
            sequence.say(chunk)
            await bench.settled()
            assert_unfinished(bench.poll(second), "in_progress")
        sequence.stop()
        await bench.settled()
        assert texts(bench.poll(second)) == [
            ("reasoning", "completed", "hm"),
            ("message", "completed", "A frog"),
        ]


async def test_a_first_token_without_word_of_prefill_is_progress(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        created = await bench.create()
        (await bench.engine.next_sequence()).say("A")
        await bench.settled()
        assert_unfinished(bench.poll(created["id"]), "in_progress")


async def test_the_engine_knows_that_nobody_waits_for_it(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        await bench.answer("Hello", background=False)
        await finish(bench, "Hello")
    assert [sequence.row.background for sequence in bench.engine.sequences] == [False, True]


async def test_its_input_items_can_be_listed_from_the_start(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        created = await bench.create(input=[message("hi", id="msg_mine")])
        before = listed(bench.stored.input_items(None, created["id"], {}))
        assert [item["id"] for item in before["data"]] == ["msg_mine"]
        play(await bench.engine.next_sequence(), "Hello")
        await bench.settled()
        assert listed(bench.stored.input_items(None, created["id"], {})) == before


async def test_another_key_sees_no_job(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        created = await bench.create("one")
        for other in ("two", None):
            with pytest.raises(NotFoundError):
                bench.poll(created["id"], other)
            with pytest.raises(NotFoundError):
                bench.cancel(created["id"], other)
        assert bench.poll(created["id"], "one")["status"] == "queued"


# How it ends


@pytest.mark.parametrize(("end", "status"), [("stop", "completed"), ("length", "incomplete")])
async def test_it_ends_as_in_the_foreground(mock_clock: MockClock, end: End, status: str) -> None:
    chunks = ("<think>", "hm", "</think>", "Hel", "lo")
    fields: Json = {"input": "hi", "instructions": "Be brief.", "top_logprobs": 1, "stop": ["x"]}
    foreground = await JobBench().answer(*chunks, end=end, stream=False, **fields)
    bench = JobBench()
    async with bench.open():
        job = await finish(bench, *chunks, end=end, **fields)
        assert job["status"] == status
        assert job == foreground | {"background": True}
        assert read(bench.stored.retrieve(None, job["id"])) == job


async def test_a_row_that_fails(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        job = await finish(bench, "part", end="fail")
        assert (job["status"], job["output"], job["completed_at"]) == ("failed", [], None)
        assert job["error"] == {"code": "server_error", "message": "Generation failed: the test says so."}
        assert (job["usage"]["input_tokens"], job["usage"]["output_tokens"]) == (1, 1)
        assert (await finish(bench, "Hello"))["status"] == "completed"


@pytest.mark.parametrize("state", ["stopped", "hanging"])
async def test_an_engine_that_stops_fails_every_job(mock_clock: MockClock, state: Any) -> None:
    bench = JobBench(slots=2)
    async with bench.open():
        ids = [(await bench.create())["id"] for _ in range(5)]
        rows = [await bench.engine.next_sequence() for _ in range(2)]
        rows[0].say("part")
        await bench.settled()
        assert bench.statuses(*ids) == ["in_progress", *["queued"] * 4]
        bench.engine.state = state
        for row in rows:
            row.fail(f"the engine is {state}")
        await bench.settled()
        for response_id in ids:
            job = bench.poll(response_id)
            assert (job["status"], job["error"]["code"], job["output"]) == ("failed", "server_error", [])
            assert f"engine is {state}" in job["error"]["message"]
        bench.assert_idle()
        with pytest.raises(EngineUnavailableError):
            await bench.create()


async def test_a_queue_that_is_full_when_the_task_starts(mock_clock: MockClock) -> None:
    """Creates of one tick all find room; then not all of them have it."""
    bench = JobBench(slots=1, depth=2)
    async with bench.open():
        ids = [(await bench.create())["id"] for _ in range(6)]
        assert set(bench.statuses(*ids)) == {"queued"}
        await bench.settled()
        assert bench.statuses(*ids) == ["queued"] * 3 + ["failed"] * 3
        job = bench.poll(ids[-1])
        assert (job["error"]["code"], job["output"], job["usage"]) == ("server_overloaded", [], NO_USAGE)
        assert len(bench.active) == 3


@pytest.mark.parametrize("text", [UNRENDERABLE, "long"])
async def test_a_prompt_that_cannot_be_run(mock_clock: MockClock, text: str) -> None:
    bench = JobBench(FakeEngine(context_window=3))
    turns = [message(text, role) for role in ("user", "assistant", "user")]
    async with bench.open():
        created = await bench.create(input=turns if text == "long" else text)
        await bench.settled()
        job = bench.poll(created["id"])
        assert (job["status"], job["output"], job["usage"]) == ("failed", [], NO_USAGE)
        assert job["error"]["code"] == "invalid_prompt"
        assert ("context window of 3" if text == "long" else "refuses this dialogue") in job["error"][
            "message"
        ]
        bench.assert_idle()


async def test_closing_time(mock_clock: MockClock) -> None:
    bench = JobBench(slots=1)
    async with bench.open():
        running, _ = await bench.start("part")
        waiting = (await bench.create())["id"]
        await bench.settled()
        bench.responses.close_at(trio.current_time())
        await bench.settled()
        for response_id in (running, waiting):
            job = bench.poll(response_id)
            assert (job["status"], job["error"]["code"], job["output"]) == ("failed", "server_error", [])


async def test_a_defect_of_ours_ends_one_job_only(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = JobBench(slots=3)
    async with bench.open():
        jobs = [await bench.start("part", input=text) for text in ("one", "two", "three")]
        broken, _ = jobs[1]
        finish = Emitter.finish

        def explode(emitter: Emitter, *arguments: Any) -> Any:
            if emitter.response.id == broken:
                raise ZeroDivisionError
            return finish(emitter, *arguments)

        monkeypatch.setattr(Emitter, "finish", explode)
        with capture_logs() as logs:
            for _, sequence in jobs:
                sequence.stop()
                await bench.settled()
        assert bench.statuses(jobs[0][0], jobs[2][0]) == ["completed", "completed"]
        assert_gone(bench, broken)
        bench.assert_idle()
        ends = {log["response_id"]: log["reason"] for log in logs if log["event"] == "job"}
        assert ends == {jobs[0][0]: None, broken: "server_error", jobs[2][0]: None}
        (failure,) = [log for log in logs if log["event"] == "job_failed"]
        assert (failure["response_id"], failure["log_level"]) == (broken, "error")
