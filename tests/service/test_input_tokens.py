"""Counting is what generating would do: the count of a request is the input of its usage."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from support.service_bench import ServiceBench, message

from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.testing.fake_engine import FakeEngine
from mlxcel_trio.testing.script import Script
from mlxcel_trio.testing.scripted_tokenizer import ScriptedTokenizer, load_scripted_tokenizer

if TYPE_CHECKING:
    import trio.testing
    from support.published import Json


@cache
def real_tokenizer() -> ScriptedTokenizer:
    """A chat template and a vocabulary as models have them; loading them takes a second."""
    return load_scripted_tokenizer(Script([]))


class CountingEngine(FakeEngine):
    """Tokenizes prompts as the tiny model does, and says what the test says."""

    @property
    def tokenizer(self) -> Any:
        return real_tokenizer()


async def assert_counts(bench: ServiceBench, **fields: Any) -> Json:
    """Count a request and make it, in either order; its response."""
    before = await bench.count(**fields)
    response = await bench.answer("Hello", **fields)
    assert response["usage"]["input_tokens"] == before == len(bench.engine.sequences[-1].row.prompt)
    return response


CALL = {"type": "function_call", "call_id": "call_9", "name": "clock", "arguments": '{"zone": "utc"}'}
OUTPUT = {
    "type": "function_call_output",
    "call_id": "call_9",
    "output": [{"type": "input_text", "text": "noon"}],
}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi"},
        {"input": "hi", "instructions": "Be brief."},
        {"input": "Ångström 🚢 <|im_end|> <think>"},
        {"input": "long " * 1000},
        {"input": [message("hi"), message("Hello", "assistant"), message("bye", id="msg_mine")]},
        {"input": [message("Be brief.", "developer"), {"role": "user", "content": "no type"}]},
        {"input": [message([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}])]},
        {"input": [message("time?"), REASONING, CALL, OUTPUT]},
        {"input": "hi", "chat_template_kwargs": {"enable_thinking": False}},
        {"input": "hi", "max_output_tokens": 1, "stream": False, "store": False, "temperature": 0},
    ],
)
async def test_a_request_by_itself(mock_clock: trio.testing.MockClock, fields: Json) -> None:
    await assert_counts(ServiceBench(CountingEngine()), **fields)


async def test_chains(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(CountingEngine())
    counts: list[int] = []
    previous = None
    for question in ("hi", "and then?", [message("x"), message("y", "assistant")], "the end"):
        response = await assert_counts(bench, input=question, previous_response_id=previous)
        counts.append(response["usage"]["input_tokens"])
        previous = response["id"]
    assert counts == sorted(set(counts))
    await assert_counts(bench, input=None, previous_response_id=previous)


async def test_conversations(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(CountingEngine())
    alone = await bench.count(input="hi")
    assert await bench.count(input="hi", conversation="talk") == alone
    assert len(bench.conversations) == 0
    await assert_counts(bench, input="hi", conversation="talk")
    bench.add_items("talk", message("aside"), CALL)
    with_history = await assert_counts(bench, input=[OUTPUT], conversation={"id": "talk"})
    assert with_history["usage"]["input_tokens"] > alone
    item_id = bench.items("talk")[0]["id"]
    await assert_counts(bench, input=[{"type": "item_reference", "id": item_id}])


async def test_a_count_leaves_nothing_behind(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(CountingEngine())
    first = await bench.answer("Hello", conversation="talk")
    before = (bench.stored.retained_bytes, bench.conversations.retained_bytes, bench.items("talk"))
    for fields in ({"conversation": "talk"}, {"previous_response_id": first["id"]}, {}):
        assert await bench.count(input="more", **fields) == await bench.count(input="more", **fields)
    assert (bench.stored.retained_bytes, bench.conversations.retained_bytes, bench.items("talk")) == before
    assert len(bench.engine.sequences) == 1
    bench.assert_idle()


async def test_the_model_may_be_left_out(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(CountingEngine())
    assert await bench.count(model=None) == await bench.count()
    with pytest.raises(InvalidRequestError) as refused:
        await bench.count(model="other")
    assert refused.value.code == "model_not_found"


async def test_a_full_queue_can_be_counted(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(CountingEngine(), slots=1, depth=0)
    run = await bench.prepare()
    assert await bench.count() > 0
    run.close()


async def test_a_prompt_that_does_not_fit_is_counted(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(CountingEngine(context_window=100))
    assert await bench.count(input="word " * 200) > 100
    with pytest.raises(InvalidRequestError) as refused:
        await bench.prepare(input="word " * 200)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": " "}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input[0].id"),
        ({"input": [OUTPUT]}, "input[0].call_id"),
        ({"temperature": 3}, "temperature"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"conversation": "no spaces"}, "conversation"),
    ],
)
async def test_what_cannot_be_generated_is_not_counted(
    mock_clock: trio.testing.MockClock, fields: Json, param: str
) -> None:
    bench = ServiceBench(CountingEngine())
    for ask in (bench.count, bench.prepare):
        with pytest.raises(InvalidRequestError) as refused:
            await ask(**fields)
        assert refused.value.param == param
