"""Each feature of the script format, driven through HTTP."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.served import checked_error, reasoning_of, serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.published import Json
    from support.served import Served

Row = ScriptRow


def final(events: list[Json]) -> Json:
    """The response in the terminal event."""
    response: Json = events[-1]["response"]
    return response


def deltas(events: list[Json], kind: str = "response.output_text.delta") -> list[str]:
    return [event["delta"] for event in events if event["type"] == kind]


async def both_ways(served: Served, **fields: Any) -> Json:
    """The response without a stream, after a look at the same as a stream: but for ids it may not differ."""
    response = await served.create(**fields)
    streamed = final(await served.stream(**fields))
    assert text_of(streamed) == text_of(response)
    assert reasoning_of(streamed) == reasoning_of(response)
    for key in ("status", "usage", "incomplete_details"):
        assert streamed[key] == response[key]
    return response


async def test_the_first_row_that_matches_answers_until_it_is_used_up() -> None:
    rows = (
        Row(emit=("fallback",)),
        Row(when="boat", times=1, emit=("first",)),
        Row(when="boat", emit=("second",)),
        Row(when="small boat", emit=("never",)),
    )
    async with serving_script(*rows) as served:
        said = ("a small boat", "a boat", "a boat", "a ship")
        answers = [text_of(await served.create(input=text)) for text in said]
        assert answers == ["first", "second", "second", "fallback"]
        assert text_of(final(await served.stream(input="a boat"))) == "second"


async def test_when_is_not_searched_before_the_last_assistant_turn() -> None:
    dialogue = [{"role": "user", "content": "boat"}, {"role": "assistant", "content": "boat"}]
    async with serving_script(Row(when="boat", emit=("boat it is",)), Row(emit=("no boat",))) as served:
        for text, answer in (("ship", "no boat"), ("boat", "boat it is")):
            response = await served.create(input=[*dialogue, {"role": "user", "content": text}])
            assert text_of(response) == answer


async def test_a_tool_result_is_searched() -> None:
    dialogue = [
        {"role": "user", "content": "where?"},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a boat"},
    ]
    async with serving_script(Row(when="a boat", emit=("found",))) as served:
        assert text_of(await served.create(input=dialogue)) == "found"


async def test_no_row_gives_an_empty_answer() -> None:
    async with serving_script(Row(when="boat", emit=("x",))) as served:
        response = await both_ways(served, input="ship")
    assert text_of(response) == ""
    assert [item["type"] for item in response["output"]] == ["message"]
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens"] == 1


async def test_one_chunk_is_one_token_and_one_delta() -> None:
    async with serving_script(Row(emit=("Hel", "lo", " Hel"))) as served:
        response = await both_ways(served)
        events = await served.stream()
    assert text_of(response) == "Hello Hel"
    assert deltas(events) == ["Hel", "lo", " Hel"]
    assert response["usage"]["output_tokens"] == 4, "three chunks and the end token"


async def test_a_character_split_over_chunks_is_one_delta() -> None:
    async with serving_script(Row(emit=("A ",), emit_bytes=("f09f", "9b", "b5"))) as served:
        response = await both_ways(served)
        events = await served.stream()
    assert text_of(response) == "A \N{MOTOR SCOOTER}"
    assert deltas(events) == ["A ", "\N{MOTOR SCOOTER}"]
    assert response["usage"]["output_tokens"] == 5


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (("e2", "28", "a1"), "\ufffd(\ufffd"),
        (("ff", "fe"), "\ufffd\ufffd"),
        (("f09f",), "\ufffd"),
        (("61f09f", "62"), "a\ufffdb"),
    ],
)
async def test_bytes_that_are_no_text_become_replacement_characters(
    chunks: tuple[str, ...], text: str
) -> None:
    async with serving_script(Row(emit_bytes=chunks)) as served:
        response = await both_ways(served)
    assert text_of(response) == text
    assert response["status"] == "completed"


async def test_forever_runs_to_the_end_of_the_window() -> None:
    async with serving_script(Row(emit=("la ",), forever=True), context_window=64) as served:
        response = await both_ways(served)
    usage = response["usage"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert usage["total_tokens"] == 64
    assert text_of(response) == "la " * usage["output_tokens"]


async def test_the_window_is_8192_unless_a_flag_says_otherwise() -> None:
    async with serving_script(Row(emit=("la ",), forever=True)) as served:
        response = await served.create()
    assert response["usage"]["total_tokens"] == 8192


async def test_the_prompt_ends_with_an_open_reasoning_block() -> None:
    rows = (
        Row(when="deep", prompt_ends_with="<think>\n", emit=("so ", "four", "</think>", "\n\n4")),
        Row(emit=("4",)),
    )
    async with serving_script(*rows) as served:
        response = await both_ways(served, input="deep")
        events = await served.stream(input="deep")
        plain = await served.create(input="easy")
        assert served.engine.prompts()[0].endswith("<|im_start|>assistant\n<think>\n")
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert reasoning_of(response) == "so four"
    assert text_of(response) == "4"
    assert deltas(events, "response.reasoning_text.delta") == ["so", " four"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    assert [item["type"] for item in plain["output"]] == ["message"]


async def test_a_prefill_delay_is_filled_with_pings() -> None:
    async with serving_script(Row(prefill_delay=0.5, emit=("late",)), sse_ping_interval=0.05) as served:
        started = trio.current_time()
        events = await served.stream()
        assert trio.current_time() - started >= 0.5
    types = [event["type"] for event in events]
    pings = types.index("response.output_item.added") - 2
    assert pings >= 3, "the interval passes nine times"
    assert set(types[1 : 2 + pings]) == {"response.in_progress"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert text_of(final(events)) == "late"


async def test_pings_can_be_turned_off() -> None:
    async with serving_script(Row(prefill_delay=0.2, emit=("late",)), sse_ping_interval=0) as served:
        types = [event["type"] for event in await served.stream()]
    assert types.count("response.in_progress") == 1


async def test_a_delay_comes_before_every_chunk() -> None:
    async with serving_script(Row(delay=0.1, emit=("a", "b"))) as served:
        started = trio.current_time()
        async with served.open_stream() as events:
            times = []
            for _ in range(2):
                await events.next("response.output_text.delta")
                times.append(trio.current_time() - started)
            assert text_of(await events.rest()) == "ab"
    assert times[0] >= 0.1
    assert times[1] >= 0.2


async def test_a_delay_holds_up_nobody_else() -> None:
    rows = (Row(when="slow", prefill_delay=3600), Row(emit=("quick",)))
    async with serving_script(*rows) as served, served.open_stream(input="slow") as slow:
        await slow.next("response.in_progress")
        assert text_of(await served.create(input="x")) == "quick"


async def test_then_length_ends_on_the_last_chunk() -> None:
    async with serving_script(Row(emit=("a", "b"), then="length")) as served:
        response = await both_ways(served)
    assert response["status"] == "incomplete"
    assert response["output"][-1]["status"] == "incomplete"
    assert text_of(response) == "ab"
    assert response["usage"]["output_tokens"] == 2


async def test_then_raise_fails_that_response_alone() -> None:
    rows = (
        Row(when="bad", emit=("a", "b"), then="raise"),
        Row(when="none", then="raise"),
        Row(emit=("ok", " ok"), delay=0.05),
    )
    async with serving_script(*rows) as served:
        async with served.open_stream(input="good") as neighbour:
            await neighbour.next("response.output_text.delta")
            failed = final(await served.stream(input="bad"))
            empty = final(await served.stream(input="none"))
            replies = [await served.refusal(input=text) for text in ("bad", "none")]
            assert text_of(await neighbour.rest()) == "ok ok"
        assert (await served.health())["engine"] == "running"
    for response in (failed, empty):
        assert response["status"] == "failed"
        assert response["error"]["code"] == "server_error"
        assert response["error"]["message"]
    assert text_of(failed) == "ab", "what was streamed is kept"
    assert failed["usage"]["output_tokens"] == 2
    for reply in replies:
        error = checked_error(reply)
        assert reply.status_code == 500
        assert (error["type"], error["code"], error["param"]) == ("server_error", "server_error", None)


class Fates:
    """How requests end that are open while the engine dies."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.responses: list[Json] = []
        self.errors: list[Json] = []

    async def stream(self, **fields: Any) -> None:
        self.responses.append(final(await self._served.stream(**fields)))

    async def create(self, **fields: Any) -> None:
        reply = await self._served.refusal(**fields)
        assert reply.status_code == 500
        self.errors.append(checked_error(reply))

    def check(self, *, streams: int, json: int) -> None:
        assert [response["status"] for response in self.responses] == ["failed"] * streams
        assert {response["error"]["code"] for response in self.responses} == {"server_error"}
        assert [error["code"] for error in self.errors] == ["server_error"] * json
        assert {error["type"] for error in self.errors} == {"server_error"}


async def assert_takes_no_work(served: Served) -> None:
    for stream in (False, True):
        reply = await served.refusal(stream=stream)
        error = checked_error(reply)
        assert reply.status_code == 503
        assert (error["type"], error["code"]) == ("server_error", "engine_unavailable")
        assert "stopped" in error["message"]
    health = await served.client.get("/health")
    assert health.status_code == 503
    assert health.json()["engine"] == "stopped"


DEADLY = (Row(when="die", emit=("last words",), then="die"), Row(emit=("la ",), forever=True, delay=0.01))


async def test_then_die_settles_every_response_in_the_engine() -> None:
    async with serving_script(*DEADLY, parallel=17) as served:
        fates = Fates(served)
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(fates.stream)
                nursery.start_soon(fates.create)
            await served.until_true(lambda now: now["rows"] == 16 and now["sampled_tokens"] >= 32)
            nursery.start_soon(partial(fates.create, input="die"))
        fates.check(streams=8, json=9)
        assert all(text_of(response).startswith("la ") for response in fates.responses)
        await assert_takes_no_work(served)


async def test_then_die_settles_those_who_wait_for_a_slot() -> None:
    async with serving_script(*DEADLY, parallel=1) as served:
        fates = Fates(served)
        deaths: tuple[Callable[[], Awaitable[None]], ...] = (
            partial(fates.stream, input="die"),
            fates.stream,
            fates.create,
        )
        async with trio.open_nursery() as nursery, served.open_stream() as holder:
            await holder.next("response.output_text.delta")
            for position, start in enumerate(deaths, start=1):
                nursery.start_soon(start)
                await served.until(waiting=position)
        fates.check(streams=2, json=1)
        assert sorted(text_of(response) for response in fates.responses) == ["", "last words"]
        await assert_takes_no_work(served)


async def test_no_end_token_among_logprobs_when_an_answer_ends_in_half_a_character() -> None:
    async with serving_script(ScriptRow(emit=("a",), emit_bytes=("f09f",))) as served:
        response = await served.create(top_logprobs=1)
    (part,) = response["output"][0]["content"]
    assert part["text"] == "a\N{REPLACEMENT CHARACTER}"
    assert [entry["bytes"] for entry in part["logprobs"]] == [[0x61], [0xF0, 0x9F]]
