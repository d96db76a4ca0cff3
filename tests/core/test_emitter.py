"""The emitter: any order of segments becomes a stream that strict readers accept."""

from __future__ import annotations

import json
from time import process_time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emission import (
    COMPACTION,
    NOW,
    PLAIN,
    SKELETONS,
    USAGE,
    Ping,
    Step,
    call,
    counting_ids,
    emit,
)
from support.wire import StreamChecker, accumulate, check_stream, validate_response

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
from mlxcel_trio.protocol.events import ResponseCreated, ResponseInProgress
from mlxcel_trio.protocol.responses import (
    Response,
    ResponseError,
    TokenLogprob,
    TopLogprob,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.published import Json

FAILED = Failed(ResponseError("server_error", "The engine failed. Send the request again."))
OVERLOADED = Failed(ResponseError("server_overloaded", "The queue is full. Retry later."))
ENDINGS: tuple[Ending, ...] = (Completed(), LengthStop(), Cancelled(), FAILED, OVERLOADED)
CUTS: tuple[Ending, ...] = ENDINGS[1:]
A = TokenLogprob("a", -0.5, (97,), (TopLogprob("a", -0.5, (97,)), TopLogprob("b", -1.5, (98,))))
B = TokenLogprob("b", -1.0, (98,), ())

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
octets = st.lists(st.integers(0, 255), max_size=4).map(tuple)
log_values = st.floats(-50, 0)
top_logprobs = st.builds(TopLogprob, texts, log_values, octets)
logprobs = st.builds(TokenLogprob, texts, log_values, octets, st.lists(top_logprobs, max_size=2).map(tuple))
text_deltas = st.builds(TextDelta, texts, st.lists(logprobs, max_size=2).map(tuple))
reasoning_deltas = st.builds(ReasoningDelta, texts)
arguments_texts = st.dictionaries(texts, texts | st.integers(-9, 9) | st.none(), max_size=2).map(json.dumps)


@st.composite
def calls(draw: st.DrawFn) -> list[Segment]:
    """A call in every way that a parser may report one; some are never ended."""
    arguments = draw(arguments_texts | st.just(""))
    cuts = sorted(draw(st.sets(st.integers(0, len(arguments)), max_size=3)))
    pieces = [arguments[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False)]
    fragments = [CallArgumentsDelta(piece) for piece in pieces if piece]
    end = [CallEnd(arguments)] if draw(st.integers(0, 4)) else []
    return [CallStart(draw(st.sampled_from(["weather", "clock"]))), *fragments, *end]


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Segments in any order, pings anywhere."""
    groups = draw(st.lists((text_deltas | reasoning_deltas).map(lambda it: [it]) | calls(), max_size=6))
    steps: list[Step] = [segment for group in groups for segment in group]
    for place in draw(st.lists(st.integers(0, len(steps)), max_size=3)):
        steps.insert(place, Ping())
    return steps


def types(events: Sequence[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def started() -> Emitter:
    emitter = Emitter(PLAIN, counting_ids())
    emitter.start()
    return emitter


def shape(response: Json) -> list[tuple[str, str | None]]:
    return [(item["type"], item.get("status")) for item in response["output"]]


@settings(deadline=None)
@given(scripts(), st.sampled_from(ENDINGS), st.sampled_from(SKELETONS), st.booleans())
def test_any_order_gives_a_valid_stream(
    steps: list[Step], ending: Ending, skeleton: Response, compacted: bool
) -> None:
    events, response = emit(steps, ending, skeleton=skeleton, compacted=compacted)

    assert check_stream(events) == response
    validate_response(response)


@settings(deadline=None, max_examples=50)
@given(scripts(), st.sampled_from(ENDINGS), st.booleans())
def test_the_stream_says_what_the_segments_said(steps: list[Step], ending: Ending, compacted: bool) -> None:
    _, response = emit(steps, ending, compacted=compacted)

    items = response["output"]
    parts = [part for item in items for part in item.get("content", [])]
    told = [part["text"] for part in parts if part["type"] == "output_text"]
    thought = [part["text"] for part in parts if part["type"] == "reasoning_text"]
    assert "".join(told) == "".join(step.text for step in steps if isinstance(step, TextDelta))
    assert "".join(thought) == "".join(step.text for step in steps if isinstance(step, ReasoningDelta))
    called = [item["name"] for item in items if item["type"] == "function_call"]
    assert called == [step.name for step in steps if isinstance(step, CallStart)]
    ended = [step.arguments or "{}" for step in steps if isinstance(step, CallEnd)]
    kept = {item["arguments"] for item in items if item["type"] == "function_call"}
    assert set(ended) <= kept
    assert (
        items[:1] == [{"type": "compaction", "id": "cmp_1", "encrypted_content": "eyJ2IjoxfQ"}]
    ) == compacted


@settings(deadline=None, max_examples=30)
@given(scripts(), st.sampled_from(ENDINGS), st.booleans(), st.data())
def test_every_start_of_a_stream_can_be_read(
    steps: list[Step], ending: Ending, compacted: bool, data: st.DataObject
) -> None:
    events, _ = emit(steps, ending, compacted=compacted)
    start = events[: data.draw(st.integers(1, len(events) - 1))]

    checker = StreamChecker()
    for event in start:
        checker.feed(event)
    with pytest.raises(AssertionError, match="without a terminal one"):
        checker.finish()
    accumulate(start)


def test_the_events_of_an_answer_with_reasoning_and_calls() -> None:
    steps: list[Step] = [
        ReasoningDelta("Hm"),
        ReasoningDelta("m."),
        TextDelta("I look", (A,)),
        TextDelta(" it up.", (B,)),
        *call("weather", '{"city":', arguments='{"city":"Oslo"}'),
        *call("clock", arguments=""),
    ]

    events, response = emit(steps, Completed())

    assert types(events) == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]  # fmt: skip
    reasoning, message, weather, clock = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert message["content"][0]["text"] == "I look it up."
    assert [token["token"] for token in message["content"][0]["logprobs"]] == ["a", "b"]
    assert (weather["call_id"], weather["arguments"]) == ("call_1", '{"city":"Oslo"}')
    assert (clock["call_id"], clock["arguments"]) == ("call_2", "{}")
    assert (response["status"], response["completed_at"]) == ("completed", NOW)
    assert response["usage"]["total_tokens"] == 50
    check_stream(events)


def test_a_ping_between_two_deltas_opens_nothing() -> None:
    events, response = emit([TextDelta("a"), Ping(), TextDelta("b")], Completed())

    assert types(events)[4:7] == ["output_text.delta", "in_progress", "output_text.delta"]
    assert len(response["output"]) == 1


@pytest.mark.parametrize("ending", CUTS)
@pytest.mark.parametrize(
    "steps",
    [
        [TextDelta("a")],
        [ReasoningDelta("a")],
        [TextDelta("a"), ReasoningDelta("b")],
        [TextDelta("a"), *call("clock", "{}")],
        [TextDelta("a"), CallStart("clock"), CallArgumentsDelta('{"a')],
        [TextDelta("a"), CallStart("clock")],
    ],
)
def test_a_cut_leaves_the_last_item_incomplete_and_no_other(steps: list[Step], ending: Ending) -> None:
    events, response = emit(steps, ending)

    statuses = [item["status"] for item in response["output"]]
    assert statuses == ["completed"] * (len(statuses) - 1) + ["incomplete"]
    check_stream(events)


@pytest.mark.parametrize(
    ("ending", "kind", "status", "details"),
    [
        (LengthStop(), "incomplete", "incomplete", {"reason": "max_output_tokens"}),
        (Cancelled(), "incomplete", "cancelled", None),
        (FAILED, "failed", "failed", None),
    ],
)
def test_a_cut_call_keeps_the_arguments_so_far(
    ending: Ending, kind: str, status: str, details: Json | None
) -> None:
    events, response = emit([CallStart("weather"), CallArgumentsDelta('{"ci')], ending)

    assert types(events)[-3:] == ["function_call_arguments.done", "output_item.done", kind]
    assert response["output"][0]["arguments"] == '{"ci'
    assert (response["status"], response["incomplete_details"]) == (status, details)
    assert response["completed_at"] is None


def test_a_failure_keeps_the_output_and_says_why() -> None:
    events, response = emit([TextDelta("Once")], FAILED)

    assert response["error"] == {
        "code": "server_error",
        "message": "The engine failed. Send the request again.",
    }
    assert response["output"][0]["content"][0]["text"] == "Once"
    assert response["usage"]["output_tokens"] == 20
    check_stream(events)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Completed(), [("message", "completed")]),
        (LengthStop(), [("message", "incomplete")]),
        (Cancelled(), []),
        (FAILED, []),
    ],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_no_output_at_all(ending: Ending, expected: list[tuple[str, str]], *, compacted: bool) -> None:
    events, response = emit([], ending, compacted=compacted)

    assert shape(response) == [("compaction", None)] * compacted + expected
    check_stream(events)


@pytest.mark.parametrize("steps", [[ReasoningDelta("a")], call("clock", "{}")])
@pytest.mark.parametrize("ending", [Completed(), LengthStop()])
def test_no_empty_message_beside_other_output(steps: list[Step], ending: Ending) -> None:
    _, response = emit(steps, ending)

    assert [item["type"] for item in response["output"]] != []
    assert "message" not in [item["type"] for item in response["output"]]


def test_a_call_that_never_ends_is_incomplete_and_the_answer_goes_on() -> None:
    steps: list[Step] = [CallStart("clock"), CallArgumentsDelta("{"), CallStart("clock"), TextDelta("a")]

    events, response = emit(steps, Completed())

    assert shape(response) == [
        ("function_call", "incomplete"),
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]
    check_stream(events)


def test_a_compaction_comes_first_and_is_complete_when_added() -> None:
    events, _ = emit([TextDelta("a")], Completed(), compacted=True)

    started, completed, added, done = events[2:6]
    assert started == {
        "type": "mlx.compaction.started",
        "sequence_number": 2,
        "response_id": "resp_1",
        "input_tokens": 900,
    }
    assert completed["input_tokens_before"] == 900
    assert completed["input_tokens_after"] == 40
    assert (
        added["item"]
        == done["item"]
        == {
            "type": "compaction",
            "id": "cmp_1",
            "encrypted_content": "eyJ2IjoxfQ",
        }
    )
    assert events[6]["output_index"] == 1


def test_the_skeleton_is_shared_and_response_is_the_terminal_one() -> None:
    emitter = Emitter(PLAIN, counting_ids())
    created, in_progress = emitter.start()
    ping = emitter.ping()

    assert isinstance(created, ResponseCreated)
    assert isinstance(in_progress, ResponseInProgress)
    assert isinstance(ping, ResponseInProgress)
    assert created.response is in_progress.response is ping.response is emitter.response is PLAIN
    terminal = emitter.finish(Completed(), USAGE, NOW)[-1]
    assert emitter.response is getattr(terminal, "response", None)


@pytest.mark.parametrize("streamed", ['{"a"', "{}"])
@pytest.mark.parametrize("arguments", ['{"b": 1}', ""])
def test_arguments_that_contradict_the_stream_are_an_error(streamed: str, arguments: str) -> None:
    emitter = started()
    emitter.feed(CallStart("clock"))
    emitter.feed(CallArgumentsDelta(streamed))

    with pytest.raises(ValueError, match="clock"):
        emitter.feed(CallEnd(arguments))
    # Nothing was emitted and no number used: the response can still fail in order.
    numbers = [event.sequence_number for event in emitter.finish(FAILED, USAGE, NOW)]
    assert numbers == [4, 5, 6]


@pytest.mark.parametrize(
    "before",
    [[], [TextDelta("a")], call("clock", "{}"), [CallStart("clock"), ReasoningDelta("a")]],
)
@pytest.mark.parametrize("segment", [CallEnd("{}"), CallArgumentsDelta("{")])
def test_arguments_without_an_open_call_are_an_error(before: list[Segment], segment: Segment) -> None:
    emitter = started()
    for earlier in before:
        emitter.feed(earlier)

    with pytest.raises(RuntimeError, match="CallStart"):
        emitter.feed(segment)


MISUSES: list[Callable[[Emitter], object]] = [
    lambda emitter: emitter.feed(TextDelta("a")),
    lambda emitter: emitter.ping(),
    lambda emitter: emitter.compaction_started(1),
    lambda emitter: emitter.compaction_completed(2, 1),
    lambda emitter: emitter.add_compaction(COMPACTION),
    lambda emitter: emitter.finish(Completed(), USAGE, NOW),
]


@pytest.mark.parametrize("misuse", MISUSES)
def test_nothing_happens_before_the_start_or_after_the_end(misuse: Callable[[Emitter], object]) -> None:
    emitter = Emitter(PLAIN, counting_ids())

    with pytest.raises(RuntimeError, match="not started"):
        misuse(emitter)
    emitter.start()
    emitter.finish(Completed(), USAGE, NOW)
    with pytest.raises(RuntimeError, match="finished"):
        misuse(emitter)
    with pytest.raises(RuntimeError, match="started before"):
        emitter.start()


@pytest.mark.parametrize("misuse", MISUSES[2:5])
def test_compaction_precedes_all_output(misuse: Callable[[Emitter], object]) -> None:
    emitter = started()
    emitter.feed(TextDelta("a"))

    with pytest.raises(RuntimeError, match="precedes"):
        misuse(emitter)


@pytest.mark.parametrize("kind", ["text", "reasoning", "call"])
def test_a_long_answer_costs_linear_time(kind: str) -> None:
    segments: dict[str, Segment] = {
        "text": TextDelta("x" * 40, (B,)),
        "reasoning": ReasoningDelta("x" * 40),
        "call": CallArgumentsDelta("x" * 40),
    }
    emitter = started()
    if kind == "call":
        emitter.feed(CallStart("clock"))
    before = process_time()

    for _ in range(100_000):
        emitter.feed(segments[kind])
    emitter.finish(LengthStop(), Usage(1, output_tokens=100_000, total_tokens=100_001), NOW)

    # Joining at each delta would copy 200 GB.
    assert process_time() - before < 4
    assert b"x" * 4_000_000 in encode(emitter.response)
