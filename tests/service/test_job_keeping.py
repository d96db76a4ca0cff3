"""Background responses in the stores: read, continued, deleted, in conversations, too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs
from support.job_bench import EPHEMERAL_TTL, UNRENDERABLE, JobBench
from support.job_checks import assert_gone, assert_refused, assert_unchainable, assert_unfinished, finish
from support.service_bench import limits, listed, message, play, texts

from mlxcel_trio.errors import InvalidRequestError

if TYPE_CHECKING:
    from support.published import Json
    from trio.testing import MockClock

    from mlxcel_trio.testing.fake_engine import FakeSequence


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
            assert bench.delete(response_id) == {"id": response_id, "object": "response", "deleted": True}
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
