"""One response from admission to its terminal event, on a fake engine and a mock clock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace
from support.service_bench import End, ServiceBench, collect, final, texts

from mlxcel_trio.core.history import to_messages
from mlxcel_trio.core.parsing.output import OutputParser
from mlxcel_trio.errors import EngineFailureError
from mlxcel_trio.protocol.events import Event, OutputTextDelta, ResponseInProgress
from mlxcel_trio.testing.fake_engine import FakeEngine, FakeTokenizer

if TYPE_CHECKING:
    from support.published import Json

    from mlxcel_trio.core.messages import ChatMessage
    from mlxcel_trio.engine.tokenizer import RenderedPrompt
    from mlxcel_trio.service.pipeline import ResponseRun


class ReasoningTokenizer(FakeTokenizer):
    """Of a model whose generation prompt opens a reasoning block."""

    def render(self, *args: Any, **kwargs: Any) -> RenderedPrompt:
        return replace(super().render(*args, **kwargs), opens_reasoning=True)


async def generate(bench: ServiceBench, *chunks: str, end: End = "stop", **fields: Any) -> Json:
    """A whole response, after which nothing is held."""
    response = await bench.answer(*chunks, end=end, **fields)
    bench.assert_idle()
    return response


async def test_an_answer(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await generate(bench, "Hel", "lo")
    assert texts(response) == [("message", "completed", "Hello")]
    assert response["status"] == "completed"
    assert response["completed_at"] == 7
    assert response["usage"] == {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 4,
    }


async def test_a_long_dialogue_is_rendered_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that takes long with it, so that other streams flow meanwhile."""
    threads = []

    def to_messages_and_note(*args: Any) -> list[ChatMessage]:
        threads.append(threading.get_ident())
        return to_messages(*args)

    monkeypatch.setattr("mlxcel_trio.service.responses.to_messages", to_messages_and_note)
    bench = ServiceBench()
    run = await bench.prepare(input="hi")
    run.close()
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_reasoning_and_its_tokens(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await generate(bench, "<think>", "hm", "</think>", "Hello")
    assert texts(response) == [("reasoning", "completed", "hm"), ("message", "completed", "Hello")]
    usage = response["usage"]
    assert usage["output_tokens"] == 5
    assert usage["output_tokens_details"] == {"reasoning_tokens": 3}


async def test_a_token_that_holds_a_whole_block_counts(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await generate(bench, "<think>hm</think>Hello", " you")
    assert texts(response) == [("reasoning", "completed", "hm"), ("message", "completed", "Hello you")]
    usage = response["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 1}


async def test_reasoning_that_the_prompt_opens(autojump_clock: trio.testing.MockClock) -> None:
    engine = FakeEngine()
    engine.fake_tokenizer = ReasoningTokenizer()
    response = await generate(ServiceBench(engine), "hm", "</think>\n\n", "4")
    assert texts(response) == [("reasoning", "completed", "hm"), ("message", "completed", "4")]


async def test_logprobs_go_with_the_text(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await generate(bench, "<think>", "hm", "</think>", "Hel", "lo", top_logprobs=2)
    output = response["output"]
    logprobs = output[-1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs] == ["Hel", "lo"]
    assert logprobs[0]["logprob"] == -5
    assert logprobs[0]["bytes"] == list(b"Hel")
    assert [entry["token"] for entry in logprobs[0]["top_logprobs"]] == ["user: hi", "<think>"]


async def test_a_length_stop(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await generate(bench, "a", "b", end="length")
    assert texts(response) == [("message", "incomplete", "ab")]
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )


async def test_a_stop_string_drops_the_row(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    chunks = ("keel ma", "st h", "ull sail", " never seen")
    response = await generate(bench, *chunks, end="nothing", stop=["mast hull"])
    assert texts(response) == [("message", "completed", "keel ")]
    usage = response["usage"]
    assert usage["output_tokens"] == 3


async def test_a_stop_string_in_the_last_token_of_the_budget(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await generate(bench, "a", "b", end="length", stop="b")
    assert (response["status"], texts(response)) == ("completed", [("message", "completed", "a")])


async def test_nothing_said_gives_one_empty_message(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await generate(bench)
    assert texts(response) == [("message", "completed", "")]


async def test_a_failure_in_mid_stream_is_an_event(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    response = await generate(bench, "part", end="fail")
    assert response["status"] == "failed"
    assert response["error"] == {
        "code": "server_error",
        "message": "Generation failed: the test says so.",
    }
    assert texts(response) == [("message", "incomplete", "part")]


async def test_a_failure_of_a_json_request_raises(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    failure = pytest.RaisesExc(EngineFailureError, match="the test says so")
    with pytest.RaisesGroup(failure):
        async with trio.open_nursery() as nursery:
            run = await bench.prepare(stream=False)
            nursery.start_soon(run.run)
            (await bench.engine.next_sequence()).fail()
    bench.assert_idle()


async def test_an_engine_that_stops_while_the_request_waits(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(slots=1)
    first, second = await bench.prepare(), await bench.prepare()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, first)
        sequence = await bench.engine.next_sequence()

        async def wait() -> None:
            response = final(await collect(second))
            assert response["error"] == {
                "code": "server_error",
                "message": "The fake engine is stopped.",
            }

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        bench.engine.state = "stopped"
        sequence.fail()
    bench.assert_idle()


async def test_a_defect_of_ours_ends_the_stream_properly(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = ServiceBench()

    def explode(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(OutputParser, "feed", explode)
    response = await generate(bench, "a", end="nothing")
    assert response["status"] == "failed"
    assert "ZeroDivision" not in str(response["error"])


async def test_silence_repeats_in_progress(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    run = await bench.prepare()
    async with trio.open_nursery() as nursery:

        async def play() -> None:
            sequence = await bench.engine.next_sequence()
            await trio.sleep(40)
            sequence.say("<th")  # held back: the reader sees nothing of it
            await trio.sleep(12)
            sequence.say("a")
            await trio.sleep(14)
            sequence.stop()

        nursery.start_soon(play)
        async with run.open(ping_interval=15) as events:
            start = trio.current_time()
            seen = [(type(event), trio.current_time() - start) async for event in events]
    pings = [at for kind, at in seen if kind is ResponseInProgress]
    assert pings == pytest.approx([0, 15, 30, 45])
    assert [at for kind, at in seen if kind is OutputTextDelta] == pytest.approx([52])


async def test_no_pings_pile_up_behind_a_reader_that_does_not_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = ServiceBench()
    run = await bench.prepare()
    async with run.open(ping_interval=15) as events:
        await trio.sleep(1000)
        assert events.statistics().current_buffer_used == 2
    bench.assert_idle()


@pytest.mark.parametrize("stage", ["queued", "prefill", "decode", "unread end"])
async def test_leaving_at_any_stage_frees_everything(
    autojump_clock: trio.testing.MockClock, stage: str
) -> None:
    bench = ServiceBench(slots=1)
    if stage == "queued":
        holder, run = await bench.prepare(), await bench.prepare()
        async with run.open() as events:
            assert isinstance(await events.receive(), Event)
            await trio.testing.wait_all_tasks_blocked()
            assert (bench.slots.running, bench.slots.waiting) == (1, 1)
        assert (bench.slots.running, bench.slots.waiting) == (1, 0)
        holder.close()
    else:
        run = await bench.prepare()
        async with run.open():
            sequence = await bench.engine.next_sequence()
            if stage != "prefill":
                sequence.say("a")
            if stage == "unread end":
                sequence.stop()
            await trio.testing.wait_all_tasks_blocked()
            assert bench.engine.statistics().rows == (0 if stage == "unread end" else 1)
    bench.assert_idle()


async def test_closing_a_run_that_never_began() -> None:
    bench = ServiceBench(slots=1)
    first, second = await bench.prepare(), await bench.prepare()
    first.close()
    first.close()
    assert (bench.slots.running, bench.slots.waiting) == (1, 0)
    second.close()
    bench.assert_idle()


async def test_slots_are_granted_in_order_of_admission(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(slots=1, depth=10)
    order: list[str] = []
    runs = [await bench.prepare() for _ in range(5)]
    async with trio.open_nursery() as nursery:

        async def follow(run: ResponseRun) -> None:
            await collect(run)
            order.append(run.response_id)

        for run in reversed(runs):
            nursery.start_soon(follow, run)
        for _ in runs:
            (await bench.engine.next_sequence()).stop()
    assert order == [run.response_id for run in runs]
    bench.assert_idle()


async def test_closing_time_ends_streams_with_their_terminal_event(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bench = ServiceBench(slots=1)
    running, queued, late = [await bench.prepare() for _ in range(3)]
    responses: list[Json] = []
    async with trio.open_nursery() as nursery:

        async def follow(run: ResponseRun) -> None:
            responses.append(final(await collect(run)))

        nursery.start_soon(follow, running)
        (await bench.engine.next_sequence()).say("part")
        nursery.start_soon(follow, queued)
        await trio.testing.wait_all_tasks_blocked()
        bench.responses.close_at(trio.current_time() + 9)
        await trio.sleep(10)
        nursery.start_soon(follow, late)
    assert [response["status"] for response in responses] == ["failed"] * 3
    assert sorted(map(texts, responses)) == [[], [], [("message", "incomplete", "part")]]
    bench.assert_idle()


async def test_what_ends_before_closing_time_is_not_touched(autojump_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    bench.responses.close_at(trio.current_time() + 9)
    response = await generate(bench, "Hello")
    assert response["status"] == "completed"
