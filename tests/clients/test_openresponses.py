"""Every kind of answer, as JSON and as a stream, against the strict models of both published specifications.

The models of ``openai`` and of ``openresponses_types`` are read without coercion and without unknown keys;
:mod:`support.published` lists the differences that are meant. The helpers check every body and every event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from openresponses_types import ErrorPayload
from support.served import checked_error, reasoning_of, serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from support.published import Json

ROWS = (
    ScriptRow(when="think", emit=("<think>", "first", " this", "</think>", "\n\n", "then that")),
    ScriptRow(when="only thoughts", emit=("<think>", "hm", "</think>")),
    ScriptRow(when="opened", prompt_ends_with="<think>\n", emit=("so", "</think>", "\n\n", "4")),
    ScriptRow(when="unclosed", emit=("<think>", "and", " so", " on")),
    ScriptRow(when="emoji", emit_bytes=("f09f", "9b", "b5", "21")),
    ScriptRow(when="no text", emit_bytes=("ff", "41")),
    ScriptRow(when="silence", emit=()),
    ScriptRow(when="cut", emit=("a", "b"), then="length"),
    ScriptRow(when="long", emit=("word ",), forever=True),
    ScriptRow(when="break", emit=("a",), then="raise"),
    ScriptRow(emit=("Hel", "lo")),
)
DIALOGUE = [
    {"role": "developer", "content": "Be terse."},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "found"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
    {"type": "message", "role": "user", "content": "d"},
]


class Kind(NamedTuple):
    """A request and its answer."""

    fields: dict[str, Any]
    text: str
    reasoning: str = ""
    status: str = "completed"


KINDS = {
    "text": Kind({}, "Hello"),
    "dialogue": Kind({"input": DIALOGUE}, "Hello"),
    "instructions": Kind({"instructions": "Be terse."}, "Hello"),
    "reasoning": Kind({"input": "think", "reasoning": {"effort": "high"}}, "then that", "first this"),
    "reasoning that the prompt opens": Kind({"input": "opened"}, "4", "so"),
    "reasoning alone": Kind({"input": "only thoughts"}, "", "hm"),
    "reasoning without an end": Kind({"input": "unclosed"}, "", "and so on"),
    "reasoning cut short": Kind(
        {"input": "unclosed", "max_output_tokens": 2}, "", "and", status="incomplete"
    ),
    "a split character": Kind({"input": "emoji"}, "\N{MOTOR SCOOTER}!"),
    "bytes that are no text": Kind({"input": "no text"}, "\ufffdA"),
    "nothing": Kind({"input": "silence"}, ""),
    "a stop string": Kind({"stop": ["llo"]}, "He"),
    "a stop string at once": Kind({"stop": "H"}, ""),
    "a length stop": Kind({"input": "long", "max_output_tokens": 3}, "word " * 3, status="incomplete"),
    "a length stop of the engine": Kind({"input": "cut"}, "ab", status="incomplete"),
    "sampling": Kind({"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 1}, "Hello"),
    "everything echoed": Kind(
        {
            "metadata": {"a": "b"},
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_key": "p",
            "max_tool_calls": 2,
            "parallel_tool_calls": False,
            "text": {"format": {"type": "text"}, "verbosity": "low"},
            "reasoning": {"effort": "low", "summary": "auto"},
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "store": False,
            "include": [],
        },
        "Hello",
    ),
    "explicit nulls": Kind(
        dict.fromkeys(("instructions", "tools", "text", "metadata", "stop", "top_p", "store", "include")),
        "Hello",
    ),
}


def comparable(response: Json) -> Json:
    """``response`` without what is new in each: ids and times."""
    output = [{**item, "id": None} for item in response["output"]]
    return {**response, "id": None, "created_at": None, "completed_at": None, "output": output}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
async def test_an_answer(kind: Kind) -> None:
    async with serving_script(*ROWS) as served:
        response = await served.create(**kind.fields)
        events = await served.stream(**kind.fields)
    assert (text_of(response), reasoning_of(response)) == (kind.text, kind.reasoning)
    assert response["status"] == kind.status
    assert comparable(events[-1]["response"]) == comparable(response)


async def test_a_failure() -> None:
    async with serving_script(*ROWS) as served:
        events = await served.stream(input="break")
        reply = await served.refusal(input="break")
    assert events[-1]["response"]["status"] == "failed"
    assert reply.status_code == 500
    assert_error_model(reply.json()["error"])


async def test_the_alias_without_a_version() -> None:
    async with serving_script(*ROWS) as served:
        reply = await served.client.post("/responses", json={"model": "local", "input": "hi"})
    assert text_of(reply.json()) == "Hello"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "gpt-5"}, "model"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"temperature": "hot"}, "temperature"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True, "stream": True}, "background"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_refusal(fields: dict[str, Any], param: str, stream: bool) -> None:
    async with serving_script(*ROWS) as served:
        reply = await served.refusal(**{"stream": stream} | fields)
        error = checked_error(reply)
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert_error_model(error)


def assert_error_model(error: Json) -> None:
    ErrorPayload.model_validate(error, strict=True, extra="forbid")
