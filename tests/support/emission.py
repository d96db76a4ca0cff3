"""Whole runs of the emitter, as decoded JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Raw
from msgspec.structs import replace

from mlxcel_trio.core.emitter import Emitter, Ending
from mlxcel_trio.core.parsing.segments import CallArgumentsDelta, CallEnd, CallStart, Segment
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.requests import ConversationRef
from mlxcel_trio.protocol.responses import (
    Compaction,
    InputTokensDetails,
    OutputTokensDetails,
    ReasoningConfig,
    Response,
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

    from support.published import Json

    from mlxcel_trio.protocol.events import Event

NOW = 1_700_000_060
USAGE = Usage(30, InputTokensDetails(cached_tokens=8), 20, OutputTokensDetails(reasoning_tokens=5), 50)
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
CLOCK = FunctionTool("clock", "The time.", Raw(b"null"), strict=True)
RICH = replace(
    PLAIN,
    instructions="Be brief.",
    previous_response_id="resp_0",
    conversation=ConversationRef("conv_1"),
    max_output_tokens=64,
    max_tool_calls=3,
    tools=(WEATHER, CLOCK),
    tool_choice=AllowedToolsChoice("auto", (NamedToolChoice("weather"),)),
    text=TextConfig(JsonSchemaFormat("answer", None, Raw(b'{"type":"object"}'), strict=True), "low"),
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
    PLAIN,
    background=True,
    text=TextConfig(JsonObjectFormat()),
    tools=(WEATHER,),
    tool_choice=NamedToolChoice("weather"),
)
SKELETONS = (PLAIN, RICH, JOB)


class Ping:
    """A step of a run: the stream was silent for too long."""


Step = Segment | Ping


def counting_ids() -> Callable[[str], str]:
    """A source of ids like ``msg_1``, ``msg_2``, ``call_1``."""
    numbers: Counter[str] = Counter()

    def new_id(prefix: str) -> str:
        numbers[prefix] += 1
        return f"{prefix}_{numbers[prefix]}"

    return new_id


def decoded(events: Sequence[Event]) -> list[Json]:
    """The events as a client reads them."""
    return [json.loads(encode(event)) for event in events]


def call(name: str, *fragments: str, arguments: str | None = None) -> list[Segment]:
    """The segments of a call that ends with ``arguments``, by default with all that was streamed."""
    whole = "".join(fragments) if arguments is None else arguments
    return [CallStart(name), *map(CallArgumentsDelta, fragments), CallEnd(whole)]


def emit(
    steps: Sequence[Step],
    ending: Ending,
    *,
    skeleton: Response = PLAIN,
    compacted: bool = False,
    usage: Usage = USAGE,
) -> tuple[list[Json], Json]:
    """The stream of a whole run and the emitter's final response."""
    emitter = Emitter(skeleton, counting_ids())
    events = emitter.start()
    if compacted:
        events.append(emitter.compaction_started(900))
        events.append(emitter.compaction_completed(900, 40))
        events += emitter.add_compaction(COMPACTION)
    for step in steps:
        events += [emitter.ping()] if isinstance(step, Ping) else emitter.feed(step)
    events += emitter.finish(ending, usage, NOW)
    response: Json = json.loads(encode(emitter.response))
    return decoded(events), response
