"""The response before generation: every echo is there, and nothing is null that may not be."""

from __future__ import annotations

import json

from msgspec import UNSET, Raw
from msgspec.structs import asdict, replace

from mlxcel_trio.core.plan import CreatePlan
from mlxcel_trio.core.sampling import LogitAdjustments, SamplingParameters
from mlxcel_trio.core.skeleton import open_response
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.requests import ConversationRef
from mlxcel_trio.protocol.responses import ReasoningConfig, Usage
from mlxcel_trio.protocol.tools import (
    FunctionTool,
    JsonObjectFormat,
    NamedToolChoice,
    PlainTextFormat,
    TextConfig,
)

FULL = CreatePlan(
    adjustments=LogitAdjustments(presence_penalty=0.5),
    logprobs=True,
    model="tiny",
    items=(),
    instructions="Be brief.",
    sampling=SamplingParameters(temperature=0.25, top_p=0.5, top_k=3, min_p=0.1, seed=7),
    max_output_tokens=5,
    stop=("END",),
    template_kwargs={"a": 1},
    stream=True,
    store=True,
    extends_conversation=True,
    background=True,
    previous_response_id="resp_0",
    conversation=ConversationRef("conv_1"),
    tools=(FunctionTool("f", None, Raw(b'{"type":"object"}'), None),),
    tool_choice=NamedToolChoice("f"),
    parallel_tool_calls=False,
    max_tool_calls=2,
    text=TextConfig(JsonObjectFormat(), "low"),
    reasoning=ReasoningConfig("low", None),
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    top_logprobs=3,
    metadata={"k": "v"},
    safety_identifier="s",
    prompt_cache_key="p",
    user="u",
)
PLAIN = replace(
    FULL,
    instructions=None,
    max_output_tokens=None,
    background=False,
    previous_response_id=None,
    conversation=None,
    tools=(),
    tool_choice="auto",
    parallel_tool_calls=True,
    max_tool_calls=None,
    text=TextConfig(PlainTextFormat()),
    reasoning=None,
    metadata={},
    safety_identifier=None,
    prompt_cache_key=None,
    user=None,
)


def test_every_echo() -> None:
    response = open_response(FULL, response_id="resp_1", created_at=123)
    assert (response.id, response.created_at, response.status) == ("resp_1", 123, "in_progress")
    assert (response.output, response.usage, response.completed_at, response.error) == (
        (),
        Usage(),
        None,
        None,
    )
    assert (response.temperature, response.top_p) == (0.25, 0.5)
    echoed = asdict(response).keys() & asdict(FULL).keys()
    assert len(echoed) == 20
    for name in echoed:
        assert getattr(response, name) == getattr(FULL, name), name


def test_background_is_absent_from_foreground_responses() -> None:
    response = open_response(PLAIN, response_id="resp_1", created_at=123)
    assert response.background is UNSET
    assert "background" not in json.loads(encode(response))


def test_what_is_null_on_the_wire() -> None:
    body = json.loads(encode(open_response(PLAIN, response_id="resp_1", created_at=123)))
    assert sorted(key for key, value in body.items() if value is None) == [
        "completed_at",
        "conversation",
        "error",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "previous_response_id",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "user",
    ]
    assert body["output"] == []
    assert body["text"] == {"format": {"type": "text"}}
