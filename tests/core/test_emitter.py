"""The emitter: every order of segments gives a stream that strict readers accept and add up to its response."""

from __future__ import annotations

import copy
import json
from collections import Counter
from time import process_time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from support.published import WAIVERS, Json, event_differences
from support.wire import StreamChecker, accumulate, check_stream, validate_event, validate_response

from mlxcel_trio.core.emitter import Cancelled, Completed, Emitter, Ending, Failed, LengthStop
from mlxcel_trio.core.parsing.segments import (
    CallArgumentsDelta,
    CallEnd,
    CallStart,
    ReasoningDelta,
    Segment,
    TextDelta,
)
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.events import Event, ResponseCreated, ResponseInProgress
from mlxcel_trio.protocol.requests import ConversationRef
from mlxcel_trio.protocol.responses import (
    Compaction,
    InputTokensDetails,
    OutputTokensDetails,
    ReasoningConfig,
    Response,
    ResponseError,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from mlxcel_trio.protocol.tools import (
    AllowedToolsChoice,
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    PlainTextFormat,
    TextConfig,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOW = 1_700_000_060
USAGE = Usage(30, InputTokensDetails(cached_tokens=8), 20, OutputTokensDetails(reasoning_tokens=5), 50)
FAILURE = Failed(ResponseError("server_error", "The engine failed. Send the request again."))
OVERLOAD = Failed(ResponseError("server_overloaded", "The queue is full. Retry later."))
ENDINGS: tuple[Ending, ...] = (Completed(), LengthStop(), Cancelled(), FAILURE, OVERLOAD)
COMPACTION = Compaction("cmp_1", "eyJ2IjoxfQ")

PLAIN = Response(
    id="resp_1",
    created_at=1_700_000_000,
    status="in_progress",
    model="tiny",
    text=TextConfig(PlainTextFormat()),
    temperature=1.0,
    top_p=1.0,
    store=True,
)
WEATHER = FunctionTool(
    "weather", None, Raw(b'{"type":"object","properties":{"city":{"type":"string"}}}'), None
)
RICH = replace(
    PLAIN,
    instructions="Be brief.",
    previous_response_id="resp_0",
    conversation=ConversationRef("conv_1"),
    max_output_tokens=64,
    max_tool_calls=3,
    tools=(WEATHER, FunctionTool("clock", "The time.", Raw(b"null"), True)),
    tool_choice=AllowedToolsChoice("auto", (NamedToolChoice("weather"),)),
    text=TextConfig(JsonSchemaFormat("answer", None, Raw(b'{"type":"object"}'), True), "low"),
    reasoning=ReasoningConfig("high", "auto"),
    temperature=0.5,
    presence_penalty=0.25,
    top_logprobs=2,
    store=False,
    metadata={"purpose": "test"},
    safety_identifier="s",
    prompt_cache_key="k",
    user="u",
)
JOB = replace(
    PLAIN, background=True, text=TextConfig(JsonObjectFormat()), tool_choice=NamedToolChoice("weather")
)
SKELETONS = (PLAIN, RICH, JOB)


class Ping:
    """A step of a script: the stream was silent for too long."""


Step = Segment | Ping


def counting_ids() -> Callable[[str], str]:
    numbers: Counter[str] = Counter()

    def new_id(prefix: str) -> str:
        numbers[prefix] += 1
        return f"{prefix}_{numbers[prefix]}"

    return new_id


def wire(events: Sequence[Event]) -> list[Json]:
    return [json.loads(encode(event)) for event in events]


def emit(
    steps: Sequence[Step],
    ending: Ending,
    *,
    skeleton: Response = PLAIN,
    compacted: bool = False,
    usage: Usage = USAGE,
) -> tuple[list[Json], Response]:
    """The decoded stream of a whole run, and the emitter's final response."""
    emitter = Emitter(skeleton, counting_ids())
    events = emitter.start()
    if compacted:
        events.append(emitter.compaction_started(900))
        events.append(emitter.compaction_completed(900, 40))
        events += emitter.add_compaction(COMPACTION)
    for step in steps:
        events += [emitter.ping()] if isinstance(step, Ping) else emitter.feed(step)
    events += emitter.finish(ending, usage, NOW)
    return wire(events), emitter.response


def types(events: Sequence[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def call(name: str, *fragments: str, arguments: str | None = None) -> list[Segment]:
    whole = "".join(fragments) if arguments is None else arguments
    return [CallStart(name), *map(CallArgumentsDelta, fragments), CallEnd(whole)]


# Strategies ---------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
octets = st.lists(st.integers(0, 255), max_size=4).map(tuple)
probabilities = st.floats(-50, 0)
top_logprobs = st.builds(TopLogprob, texts, probabilities, octets)
logprobs = st.builds(
    TokenLogprob, texts, probabilities, octets, st.lists(top_logprobs, max_size=2).map(tuple)
)
text_deltas = st.builds(TextDelta, texts, st.lists(logprobs, max_size=2).map(tuple))
json_objects = st.dictionaries(texts, texts | st.integers(-9, 9) | st.none(), max_size=2).map(json.dumps)


@st.composite
def calls(draw: st.DrawFn) -> list[Segment]:
    """A call in every way that a parser may report one, some of them never ended."""
    arguments = draw(json_objects | st.just(""))
    cuts = sorted(draw(st.sets(st.integers(0, len(arguments)), max_size=3)))
    pieces = [arguments[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False)]
    fragments = [CallArgumentsDelta(piece) for piece in pieces if piece]
    ended = [CallEnd(arguments)] if draw(st.integers(0, 4)) else []
    return [CallStart(draw(st.sampled_from(["weather", "clock"]))), *fragments, *ended]


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Segments in any order, with pings anywhere."""
    kinds = text_deltas.map(lambda it: [it]) | texts.map(lambda it: [ReasoningDelta(it)]) | calls()
    steps: list[Step] = [step for steps in draw(st.lists(kinds, max_size=6)) for step in steps]
    for place in draw(st.lists(st.integers(0, len(steps)), max_size=3)):
        steps.insert(place, Ping())
    return steps


# Any order of segments ----------------------------------------------------------------------------------


@given(scripts(), st.sampled_from(ENDINGS), st.sampled_from(SKELETONS), st.booleans())
def test_any_order_gives_a_valid_stream(
    steps: list[Step], ending: Ending, skeleton: Response, compacted: bool
) -> None:
    events, response = emit(steps, ending, skeleton=skeleton, compacted=compacted)

    final = check_stream(events)

    assert final == json.loads(encode(response))
    validate_response(final)
    assert final["usage"]["output_tokens"] == 20
