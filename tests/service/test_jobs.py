"""Background responses, from create to the last poll, on a fake engine and a mock clock."""

from __future__ import annotations

import gc
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs
from support.job_bench import EPHEMERAL_TTL, UNRENDERABLE, JobBench
from support.service_bench import limits, listed, message, play, read, texts

from mlxcel_trio.core.emitter import Emitter
from mlxcel_trio.errors import (
    ApiError,
    EngineUnavailableError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
    ServerOverloadedError,
)
from mlxcel_trio.testing.fake_engine import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.published import Json
    from support.service_bench import End
    from trio.testing import MockClock

    from mlxcel_trio.testing.fake_engine import FakeSequence

NO_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def assert_unfinished(response: Json, status: str) -> None:
    """Nothing of the answer can be seen."""
    assert (response["status"], response["output"], response["usage"]) == (status, [], NO_USAGE)
    assert response["background"] is True


def assert_gone(bench: JobBench, response_id: str) -> None:
    """No way leads to the job."""
    looks: list[Callable[[str], object]] = [bench.poll, bench.cancel, bench.delete]
    for look in looks:
        with pytest.raises(NotFoundError):
            look(response_id)


async def assert_unchainable(bench: JobBench, response_id: str) -> None:
    """No request can continue the job, though it can be read."""
    bench.poll(response_id)
    for background in (True, False):
        with pytest.raises(InvalidRequestError) as refused:
            await bench.prepare(previous_response_id=response_id, background=background, stream=False)
        assert refused.value.code == "previous_response_not_found"


async def finish(bench: JobBench, *chunks: str, end: End = "stop", **fields: Any) -> Json:
    """A whole job."""
    created = await bench.create(**fields)
    play(await bench.engine.next_sequence(), *chunks, end=end)
    await bench.settled()
    return bench.poll(created["id"])


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


# Cancelling


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


# What create refuses


def footprint(bench: JobBench) -> tuple[object, ...]:
    """All that a create may change."""
    places = (len(bench.active), bench.active.retained_bytes, bench.slots.running, bench.slots.waiting)
    return (*places, len(bench.stored), len(bench.stored._live), len(bench.engine.sequences))


async def assert_refused(bench: JobBench, error: type[ApiError], **fields: Any) -> ApiError:
    """A job is refused and nothing has changed; the error."""
    await bench.settled()
    before = footprint(bench)
    with pytest.raises(error) as refused:
        await bench.prepare_job(**fields)
    await bench.settled()
    assert footprint(bench) == before
    return refused.value


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


# Reading, continuing and deleting it


async def test_unfinished_it_can_neither_be_deleted_nor_continued(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        for store in (True, False):
            response_id = (await bench.create(store=store))["id"]
            sequence: FakeSequence | None = None
            for status in ("queued", "in_progress"):
                with pytest.raises(InvalidRequestError, match=rf"has not finished \(status: {status}\)"):
                    bench.delete(response_id)
                refused = await assert_refused(bench, InvalidRequestError, previous_response_id=response_id)
                expected = f"previous response '{response_id}' has not finished (status: {status})"
                assert (refused.message, refused.param, refused.code) == (
                    expected,
                    "previous_response_id",
                    None,
                )
                if sequence is None:
                    sequence = await bench.engine.next_sequence()
                    sequence.prefill()
                    await bench.settled()
            assert sequence is not None
            sequence.stop()
            await bench.settled()
            assert bench.delete(response_id) == {
                "id": response_id,
                "object": "response",
                "deleted": True,
            }
            assert_gone(bench, response_id)


async def test_a_job_outlives_every_ttl_until_it_ends(mock_clock: MockClock) -> None:
    bench = JobBench(responses=limits(ttl_seconds=100, max_entries=1))
    async with bench.open():
        response_id, sequence = await bench.start()
        mock_clock.jump(5000)
        for _ in range(3):
            await bench.answer("another")
        assert_unfinished(bench.poll(response_id), "in_progress")
        sequence.stop()
        await bench.settled()
        mock_clock.jump(99)
        assert bench.poll(response_id)["status"] == "completed"
        mock_clock.jump(1)
        assert_gone(bench, response_id)


async def test_store_false_is_readable_for_a_while(mock_clock: MockClock) -> None:
    bench = JobBench(responses=limits(ttl_seconds=10))
    async with bench.open():
        created = await bench.create(store=False, input=[message("hi", id="msg_mine")])
        mock_clock.jump(2 * EPHEMERAL_TTL)
        play(await bench.engine.next_sequence(), "Hello")
        await bench.settled()
        mock_clock.jump(EPHEMERAL_TTL - 1)
        job = bench.poll(created["id"])
        assert (job["status"], job["store"], texts(job)) == (
            "completed",
            False,
            [("message", "completed", "Hello")],
        )
        items = listed(bench.stored.input_items(None, created["id"], {}))["data"]
        assert [item["id"] for item in items] == ["msg_mine"]
        await assert_unchainable(bench, created["id"])
        for item_id in ("msg_mine", job["output"][0]["id"]):
            reference = [{"type": "item_reference", "id": item_id}]
            assert (
                await assert_refused(bench, InvalidRequestError, input=reference)
            ).code == "item_not_found"
        mock_clock.jump(1)
        assert_gone(bench, created["id"])
        assert bench.stored.retained_bytes == 0


async def test_without_a_ttl_of_the_store_store_false_goes_all_the_same(mock_clock: MockClock) -> None:
    bench = JobBench(responses=limits(ttl_seconds=0))
    async with bench.open():
        kept, passing = await finish(bench, "Hello"), await finish(bench, "Hello", store=False)
        mock_clock.jump(EPHEMERAL_TTL)
        assert_gone(bench, passing["id"])
        assert bench.poll(kept["id"]) == kept


@pytest.mark.parametrize("end", ["stop", "length", "fail", "cancel"])
async def test_a_stored_job_can_be_continued(mock_clock: MockClock, end: Any) -> None:
    """However it ended, with the output as it stands."""
    bench = JobBench()
    async with bench.open():
        created = await bench.create(input="one")
        play(await bench.engine.next_sequence(), "two", end="nothing" if end == "cancel" else end)
        await bench.settled()
        if end == "cancel":
            bench.cancel(created["id"])
        said = ["assistant: two"] if bench.poll(created["id"])["output"] else []
        assert bool(said) is (end in ("stop", "length"))
        child = await finish(bench, "four", input="three", previous_response_id=created["id"])
        question = "user: one" if said else "user: one\n\nthree"
        assert bench.prompt() == [question, *said, *(["user: three"] if said else [])]
        bench.delete(created["id"])
        await bench.answer("six", input="five", previous_response_id=child["id"])
        assert bench.prompt()[-2:] == ["assistant: four", "user: five"]


# Conversations


async def test_a_conversation_is_read_at_create_and_extended_at_the_end(mock_clock: MockClock) -> None:
    bench = JobBench()
    async with bench.open():
        gate = bench.tokenizer.hold("one")
        created = await bench.create(conversation="talk", input="one")
        await bench.answer("three", conversation="talk", input="two")
        gate.set()
        sequence = await bench.engine.next_sequence()
        assert bench.prompt() == ["user: one"]
        assert bench.texts("talk") == ["user: two", "assistant: three"]
        play(sequence, "four")
        await bench.settled()
        turn = ["user: one", "assistant: four"]
        assert bench.texts("talk") == ["user: two", "assistant: three", *turn]
        output_id = bench.poll(created["id"])["output"][0]["id"]
        assert bench.items("talk")[-1]["id"] == output_id


@pytest.mark.parametrize(
    ("end", "fields", "appended"),
    [
        ("stop", {}, True),
        ("length", {}, True),
        ("stop", {"store": False}, False),
        ("fail", {}, False),
        ("cancel", {}, False),
    ],
)
async def test_which_turns_a_conversation_gets(
    mock_clock: MockClock, end: Any, fields: Json, appended: bool
) -> None:
    bench = JobBench()
    async with bench.open():
        created = await bench.create(conversation="talk", **fields)
        play(await bench.engine.next_sequence(), "Hello", end="nothing" if end == "cancel" else end)
        await bench.settled()
        if end == "cancel":
            bench.cancel(created["id"])
            await bench.settled()
        assert len(bench.conversations) == appended
        if appended:
            assert bench.texts("talk") == ["user: hi", "assistant: Hello"]


# Jobs that are too large


async def test_an_answer_larger_than_the_store(mock_clock: MockClock) -> None:
    bench = JobBench(responses=limits(max_bytes=12_000, ttl_seconds=1000))
    async with bench.open():
        small = await finish(bench, "Hello")
        for end in ("stop", "length"):
            job = await finish(bench, "word " * 5000, end=end, conversation="talk")
            assert (job["status"], job["output"], job["completed_at"]) == ("failed", [], None)
            assert job["error"]["code"] == "server_error"
            assert "--responses-store-max-bytes" in job["error"]["message"]
            assert job["usage"]["output_tokens"] > 0
            await assert_unchainable(bench, job["id"])
            assert bench.stored.retained_bytes <= 12_000
            bench.delete(job["id"])
        assert len(bench.conversations) == 0
        assert bench.poll(small["id"]) == small
        with capture_logs() as logs:
            last = await finish(bench, "word " * 5000)
        assert [(log["status"], log["reason"]) for log in logs] == [("failed", "server_error")]
        mock_clock.jump(999)
        assert bench.poll(last["id"]) == last
        mock_clock.jump(1)
        assert_gone(bench, last["id"])


async def test_an_ephemeral_answer_larger_than_the_store(mock_clock: MockClock) -> None:
    bench = JobBench(responses=limits(max_bytes=12_000, ttl_seconds=1000))
    async with bench.open():
        job = await finish(bench, "word " * 5000, store=False)
        assert (job["status"], job["output"]) == ("failed", [])
        await assert_unchainable(bench, job["id"])
        mock_clock.jump(EPHEMERAL_TTL - 1)
        assert bench.poll(job["id"]) == job
        mock_clock.jump(1)
        assert_gone(bench, job["id"])


async def smallest_budget(**fields: Any) -> int:
    """What a job needs to be admitted, which is less than it needs to be stored."""
    bench = JobBench()
    async with bench.open():
        await bench.create(**fields)
        return bench.active.retained_bytes


@pytest.mark.parametrize("store", [True, False])
async def test_not_even_the_failure_fits(mock_clock: MockClock, store: bool) -> None:
    # Its dialogue takes no memory that a failure could do without.
    fields: Json = {"input": [], "instructions": "Be brief.", "store": store}
    budget = await smallest_budget(**fields)
    bench = JobBench(responses=limits(max_bytes=budget, ttl_seconds=1000))
    async with bench.open():
        job = await finish(bench, "Hello", **fields)
        assert (job["status"], job["output"], job["error"]["code"]) == ("failed", [], "server_error")
        assert (len(bench.stored), bench.stored.retained_bytes) == (0, 0)
        await assert_unchainable(bench, job["id"])
        assert listed(bench.stored.input_items(None, job["id"], {}))["data"] == []
        assert bench.cancel(job["id"]) == job
        mock_clock.jump(EPHEMERAL_TTL - 1)
        assert bench.poll(job["id"]) == job
        mock_clock.jump(1)
        assert_gone(bench, job["id"])
        again = await finish(bench, "Hello", **fields)
        bench.delete(again["id"])
        assert_gone(bench, again["id"])


@pytest.mark.parametrize("store", [True, False])
async def test_what_has_no_output_is_kept_as_it_is(mock_clock: MockClock, store: bool) -> None:
    """Another failure in its place would be no smaller, and it would not be true."""
    bench = JobBench(responses=limits(max_bytes=await smallest_budget(input="x" * 300, store=store)))
    async with bench.open():
        response_id, _ = await bench.start("Hello", input="x" * 300, store=store)
        cancelled = bench.cancel(response_id)
        assert cancelled["status"] == "cancelled"
        await bench.settled()
        assert bench.poll(response_id) == cancelled
    bench = JobBench(responses=limits(max_bytes=await smallest_budget(input=UNRENDERABLE, store=store)))
    async with bench.open():
        created = await bench.create(input=UNRENDERABLE, store=store)
        await bench.settled()
        assert bench.poll(created["id"])["error"]["code"] == "invalid_prompt"


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
