"""What is found of a response by its id, while it is generated and afterwards, and what is not."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import TYPE_CHECKING, Literal

import pytest
import trio
import trio.testing
from support.checkpoints import interrupted_at
from support.service_bench import ServiceBench, collect, limits, listed, message, open_run, play, read, texts

from mlxcel_trio.errors import EngineFailureError, InvalidRequestError, NotFoundError
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.events import (
    ContentPartAdded,
    ContentPartDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)

if TYPE_CHECKING:
    from support.service_bench import End

    from mlxcel_trio.protocol.events import Event

TERMINAL = (ResponseCompleted, ResponseIncomplete, ResponseFailed)

STATUSES: dict[Literal["stop", "length", "fail", "cancel"], str] = {
    "stop": "completed",
    "length": "incomplete",
    "fail": "failed",
    "cancel": "cancelled",
}


def assert_nothing_stored(bench: ServiceBench, response_id: str, owner: str | None = None) -> None:
    """No way leads to the response."""
    stored = bench.stored
    for look in (stored.retrieve, stored.delete, stored.cancel):
        with pytest.raises(NotFoundError) as caught:
            look(owner, response_id)
        assert caught.value.code == "response_not_found"
    with pytest.raises(NotFoundError):
        stored.input_items(owner, response_id, {})
    with pytest.raises(InvalidRequestError) as refused:
        stored.history(owner, response_id)
    assert (refused.value.code, refused.value.param) == (
        "previous_response_not_found",
        "previous_response_id",
    )


# When it ends


@pytest.mark.parametrize("how", STATUSES)
async def test_whoever_gets_the_terminal_event_finds_the_response(
    mock_clock: trio.testing.MockClock, how: Literal["stop", "length", "fail", "cancel"]
) -> None:
    bench = ServiceBench()
    run = await bench.prepare(input="hi")
    async with run.open() as events:
        sequence = await bench.engine.next_sequence()
        await bench.end(run, sequence, "<think>", "hm", "</think>", "Hel", "lo", how=how)
        terminal = [event async for event in events][-1]
        found_at_once = bench.stored.retrieve(None, run.response_id)
    assert isinstance(terminal, TERMINAL)
    assert found_at_once == encode(terminal.response) == bench.stored.retrieve(None, run.response_id)
    stored = bench.retrieve(run.response_id)
    assert stored["status"] == STATUSES[how]
    last = "completed" if how == "stop" else "incomplete"
    assert texts(stored) == [("reasoning", "completed", "hm"), ("message", last, "Hello")]


async def test_the_response_is_stored_before_its_last_events_are_sent(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A reader that looks it up as each event comes."""
    bench = ServiceBench()
    run = await bench.prepare()
    seen: list[tuple[type[Event], str]] = []

    async def follow() -> None:
        async with run.open() as events:
            async for event in events:
                status: str = bench.retrieve(run.response_id)["status"]
                seen.append((type(event), status))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        sequence = await bench.engine.next_sequence()
        sequence.prefill()
        for chunk in ("Hel", "lo"):
            sequence.say(chunk)
            await trio.testing.wait_all_tasks_blocked()
        sequence.stop()
    assert seen == [
        (ResponseCreated, "in_progress"),
        (ResponseInProgress, "in_progress"),
        (OutputItemAdded, "in_progress"),
        (ContentPartAdded, "in_progress"),
        (OutputTextDelta, "in_progress"),
        (OutputTextDelta, "in_progress"),
        (OutputTextDone, "completed"),
        (ContentPartDone, "completed"),
        (OutputItemDone, "completed"),
        (ResponseCompleted, "completed"),
    ]


@pytest.mark.parametrize(("end", "status"), [("stop", "completed"), ("length", "incomplete")])
async def test_a_json_answer_is_the_stored_object(
    mock_clock: trio.testing.MockClock, end: End, status: str
) -> None:
    bench = ServiceBench()
    response = await bench.answer("Hello", end=end, stream=False)
    assert response["status"] == status
    assert bench.retrieve(response["id"]) == response
    assert len(bench.stored) == 1


async def test_a_stored_response_keeps_its_log_probabilities(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await bench.answer("Hel", "lo", top_logprobs=1)
    stored = bench.retrieve(response["id"])
    assert [entry["token"] for entry in stored["output"][0]["content"][0]["logprobs"]] == ["Hel", "lo"]


async def test_a_json_request_that_fails_leaves_nothing(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    run = await bench.prepare(stream=False, conversation="talk")
    failure = pytest.RaisesExc(EngineFailureError, match="the test says so")
    with pytest.RaisesGroup(failure):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.run)
            play(await bench.engine.next_sequence(), "part", end="fail")
    assert_nothing_stored(bench, run.response_id)
    assert (len(bench.stored), len(bench.conversations)) == (0, 0)
    bench.assert_idle()


async def test_a_stream_that_closing_time_ends_is_stored(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    run = await bench.prepare()
    async with open_run(run) as results:
        (await bench.engine.next_sequence()).say("part")
        await trio.testing.wait_all_tasks_blocked()
        bench.responses.close_at(trio.current_time())
    assert results[0]["status"] == "failed"
    assert bench.retrieve(run.response_id) == results[0]


async def leave_at(step: int, *, stream: bool) -> bool:
    """A response in a conversation whose client goes away at ``step``; whether it came to that."""
    bench = ServiceBench()
    stored_before: list[bool] = []
    ids: list[str] = []

    async def ask() -> None:
        run = await bench.prepare(stream=stream, conversation="talk")
        ids.append(run.response_id)
        with closing(run):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer)
                await (collect(run) if stream else run.run())

    async def answer() -> None:
        sequence = await bench.engine.next_sequence()
        sequence.prefill()
        for chunk in ("Hel", "lo"):
            sequence.say(chunk)
            await trio.lowlevel.checkpoint()
        sequence.stop()

    def leave(scope: trio.CancelScope) -> None:
        stored_before.append(len(bench.stored) == 1)
        scope.cancel()

    left = await interrupted_at(step, ask, leave)
    bench.assert_idle()
    stored = not left or stored_before == [True]
    assert (len(bench.stored), len(bench.conversations)) == (stored, stored)
    for response_id in ids:
        if stored:
            assert bench.retrieve(response_id)["status"] == "completed"
        else:
            assert_nothing_stored(bench, response_id)
    return left


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_before_the_end_leaves_nothing(
    mock_clock: trio.testing.MockClock, stream: bool
) -> None:
    for step in itertools.count():
        if not await leave_at(step, stream=stream):
            break
    assert step > 15


# While it is generated


async def test_in_flight(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    run = await bench.prepare(input=[message("hi", id="msg_mine")])
    response_id = run.response_id
    async with run.open() as events:
        created = await events.receive()
        sequence = await bench.engine.next_sequence()
        sequence.say("Hel")
        await trio.testing.wait_all_tasks_blocked()
        body = bench.stored.retrieve(None, response_id)
        assert body == encode(created.response)  # type: ignore[attr-defined]
        shown = read(body)
        assert (shown["status"], shown["output"], shown["usage"]["total_tokens"]) == ("in_progress", [], 0)
        items = listed(bench.stored.input_items(None, response_id, {}))["data"]
        assert [item["id"] for item in items] == ["msg_mine"]
        with pytest.raises(InvalidRequestError, match=r"has not finished \(status: in_progress\)"):
            bench.stored.delete(None, response_id)
        with pytest.raises(InvalidRequestError) as refused:
            await bench.prepare(previous_response_id=response_id)
        assert (
            refused.value.message
            == f"previous response '{response_id}' has not finished (status: in_progress)"
        )
        assert (refused.value.param, refused.value.code) == ("previous_response_id", None)
        with pytest.raises(InvalidRequestError, match="has not finished"):
            await bench.count(previous_response_id=response_id)
        sequence.stop()
        async for _ in events:
            pass
        # It has ended, though its client is still there.
        assert bench.stored.delete(None, response_id).id == response_id
        assert_nothing_stored(bench, response_id)
    assert_nothing_stored(bench, response_id)


async def test_in_flight_with_store_false(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    run = await bench.prepare(store=False)
    async with run.open():
        await bench.engine.next_sequence()
        for look in (bench.stored.retrieve, bench.stored.delete):
            with pytest.raises(NotFoundError):
                look(None, run.response_id)
        with pytest.raises(InvalidRequestError) as refused:
            await bench.prepare(previous_response_id=run.response_id)
        assert refused.value.code == "previous_response_not_found"
        assert run.response.status == "in_progress"
    assert_nothing_stored(bench, run.response_id)


async def test_store_false_leaves_nothing(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await bench.answer("Hello", store=False)
    assert response["store"] is False
    assert_nothing_stored(bench, response["id"])
    assert (len(bench.stored), bench.stored.retained_bytes) == (0, 0)


async def test_a_response_is_there_from_its_admission_on(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    run = await bench.prepare()
    assert bench.retrieve(run.response_id)["status"] == "in_progress"
    run.close()
    assert_nothing_stored(bench, run.response_id)


# Deleting and growing old


async def test_deleting(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await bench.answer("Hello")
    deleted = read(encode(bench.stored.delete(None, response["id"])))
    assert deleted == {"id": response["id"], "object": "response", "deleted": True}
    assert_nothing_stored(bench, response["id"])
    assert bench.stored.retained_bytes == 0


async def test_age_counts_from_the_end_of_the_response(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(responses=limits(ttl_seconds=100))
    run = await bench.prepare()
    async with open_run(run):
        sequence = await bench.engine.next_sequence()
        mock_clock.jump(500)
        assert bench.retrieve(run.response_id)["status"] == "in_progress"
        sequence.stop()
    mock_clock.jump(99)
    bench.retrieve(run.response_id)
    bench.cancel(run.response_id)
    (await bench.prepare(previous_response_id=run.response_id)).close()
    mock_clock.jump(1)
    assert_nothing_stored(bench, run.response_id)


async def test_no_bytes_is_a_store_that_keeps_nothing(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(responses=limits(max_bytes=0))
    run = await bench.prepare()
    async with open_run(run) as results:
        sequence = await bench.engine.next_sequence()
        assert bench.retrieve(run.response_id)["store"] is True
        play(sequence, "Hello")
    assert results[0]["status"] == "completed"
    assert_nothing_stored(bench, run.response_id)


async def test_no_entries_is_no_store(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(responses=limits(max_entries=0))
    run = await bench.prepare()

    async def assert_disabled() -> None:
        for look in (bench.stored.retrieve, bench.stored.delete, bench.stored.cancel):
            with pytest.raises(InvalidRequestError) as refused:
                look(None, run.response_id)
            assert refused.value.code == "store_disabled"
        with pytest.raises(InvalidRequestError) as refused:
            bench.stored.input_items(None, run.response_id, {})
        assert refused.value.code == "store_disabled"
        with pytest.raises(InvalidRequestError) as refused:
            await bench.prepare(previous_response_id=run.response_id)
        assert (refused.value.code, refused.value.param) == ("store_disabled", "previous_response_id")

    async with open_run(run) as results:
        sequence = await bench.engine.next_sequence()
        await assert_disabled()
        play(sequence, "Hello")
    assert (results[0]["status"], results[0]["store"]) == ("completed", False)
    await assert_disabled()


async def test_many_responses_stay_within_the_budget(mock_clock: trio.testing.MockClock) -> None:
    budget = 20_000
    bench = ServiceBench(responses=limits(max_bytes=budget))
    ids = []
    for number in range(60):
        response = await bench.answer(f"answer {number} " * 10, input=f"question {number} " * 10)
        ids.append(response["id"])
        assert 0 < bench.stored.retained_bytes <= budget
    assert 2 < len(bench.stored) < 20
    for response_id in ids[: -len(bench.stored)]:
        assert_nothing_stored(bench, response_id)
    for response_id in ids[-len(bench.stored) :]:
        bench.retrieve(response_id)


async def test_an_oversized_response_costs_no_other_its_place(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(responses=limits(max_bytes=20_000))
    small = await bench.answer("Hello")
    large = await bench.answer("word " * 5000)
    assert bench.retrieve(small["id"]) == small
    assert_nothing_stored(bench, large["id"])


# Whose it is


OWNERS = pytest.mark.parametrize(("owner", "other"), [("one", "two"), ("one", None), (None, "one")])


@OWNERS
async def test_another_key_sees_nothing(
    mock_clock: trio.testing.MockClock, owner: str | None, other: str | None
) -> None:
    bench = ServiceBench()
    response = await bench.answer("Hello", owner=owner, input=[message("hi", id="msg_mine")])
    references = [{"type": "item_reference", "id": id_} for id_ in ("msg_mine", response["output"][0]["id"])]
    assert_nothing_stored(bench, response["id"], other)
    with pytest.raises(InvalidRequestError) as refused:
        await bench.prepare(other, previous_response_id=response["id"])
    assert refused.value.code == "previous_response_not_found"
    for reference in references:
        with pytest.raises(InvalidRequestError) as refused:
            await bench.prepare(other, input=[reference])
        assert (refused.value.code, refused.value.param) == ("item_not_found", "input[0].id")
    # It has lost nothing by that.
    assert bench.retrieve(response["id"], owner) == response
    assert len(bench.stored.input_items(owner, response["id"], {}).data) == 1
    (await bench.prepare(owner, input=references)).close()
    (await bench.prepare(owner, previous_response_id=response["id"])).close()
    assert bench.stored.delete(owner, response["id"]).deleted


@OWNERS
async def test_another_key_sees_nothing_in_flight(
    mock_clock: trio.testing.MockClock, owner: str | None, other: str | None
) -> None:
    bench = ServiceBench()
    run = await bench.prepare(owner)
    async with open_run(run) as results:
        sequence = await bench.engine.next_sequence()
        assert_nothing_stored(bench, run.response_id, other)
        assert bench.retrieve(run.response_id, owner)["status"] == "in_progress"
        play(sequence, "Hello")
    assert results[0]["status"] == "completed"


# The items of a request


async def test_input_items_are_those_of_the_request(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    first = await bench.answer("one", input="hi", instructions="Be brief.")
    items = [message("two", id="msg_two"), message("three"), message("four", id="msg_four", role="developer")]
    second = await bench.answer("five", input=items, previous_response_id=first["id"])
    page = listed(bench.stored.input_items(None, second["id"], {}))
    newest_first = page["data"]
    assert [item["content"][0]["text"] for item in newest_first] == ["four", "three", "two"]
    assert [item["id"] for item in newest_first[::2]] == ["msg_four", "msg_two"]
    again = listed(bench.stored.input_items(None, second["id"], {"order": "asc", "limit": "2"}))
    assert again["data"] == newest_first[:0:-1]
    assert again["has_more"]
    rest = {"order": "asc", "after": again["last_id"]}
    assert listed(bench.stored.input_items(None, second["id"], rest))["data"] == newest_first[:1]
    with pytest.raises(InvalidRequestError):
        bench.stored.input_items(None, second["id"], {"limit": "0"})


async def test_an_item_of_any_stored_response_can_be_referred_to(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    first = await bench.answer("Hello", input=[message("hi", id="msg_mine")])
    references = [
        {"type": "item_reference", "id": "msg_mine"},
        {"type": "item_reference", "id": first["output"][0]["id"]},
        message("And now?"),
    ]
    second = await bench.answer("Bye", input=references)
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: And now?"]
    bench.stored.delete(None, first["id"])
    # The second response has them too.
    (await bench.prepare(input=references)).close()
    bench.stored.delete(None, second["id"])
    with pytest.raises(InvalidRequestError) as refused:
        await bench.prepare(input=references)
    assert refused.value.code == "item_not_found"
