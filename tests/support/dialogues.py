"""Items as requests bring them and as responses make them, and whole dialogues of both, for hypothesis."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from hypothesis import strategies as st

from mlxcel_trio.core.validation.items import read_input
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.items import InputItem, InputPart
from mlxcel_trio.protocol.responses import (
    Compaction,
    FunctionCall,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
    TokenLogprob,
    TopLogprob,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hypothesis.strategies import DrawFn, SearchStrategy

TEXTS = st.sampled_from(["", " ", "x", '"\\\n', "\u0000\u2028", "e\u0301 👩🏽‍🚀"]) | st.text(max_size=5)
NAMES = st.text("abc_", min_size=1, max_size=3)
STATUSES = st.sampled_from(["in_progress", "completed", "incomplete"])
LOGPROB = TokenLogprob("x", -0.5, (120,), (TopLogprob("x", -0.5, (120,)),))


def _parts(*kinds: str) -> SearchStrategy[list[InputPart]]:
    return st.lists(st.builds(InputPart, type=st.sampled_from(kinds), text=TEXTS), max_size=3)


_REFUSALS = st.lists(st.builds(InputPart, type=st.just("refusal"), refusal=TEXTS), max_size=1)
_SAID = st.tuples(_parts("output_text", "input_text", "text"), _REFUSALS).map(lambda both: both[0] + both[1])
_OPTIONAL_STATUS = st.none() | STATUSES

PROMPTS = st.builds(
    InputItem,
    type=st.just("message"),
    status=_OPTIONAL_STATUS,
    role=st.sampled_from(["user", "system", "developer"]),
    content=TEXTS | _parts("input_text", "text"),
)
REPLIES = st.builds(
    InputItem,
    type=st.just("message"),
    status=_OPTIONAL_STATUS,
    role=st.just("assistant"),
    content=TEXTS | _SAID,
)
THOUGHTS = st.builds(
    InputItem,
    type=st.just("reasoning"),
    status=_OPTIONAL_STATUS,
    content=st.none() | _parts("reasoning_text", "text"),
    summary=st.none() | _parts("summary_text"),
    encrypted_content=st.none() | TEXTS,
)
CALLS = st.builds(
    InputItem,
    type=st.just("function_call"),
    status=_OPTIONAL_STATUS,
    call_id=NAMES,
    name=NAMES,
    arguments=TEXTS,
)
CALL_OUTPUTS = st.builds(
    InputItem,
    type=st.just("function_call_output"),
    status=_OPTIONAL_STATUS,
    call_id=NAMES,
    output=TEXTS | _parts("input_text", "output_text", "text"),
)
COMPACTIONS = st.builds(InputItem, type=st.just("compaction"), encrypted_content=TEXTS.filter(bool))
INPUT_ITEMS = PROMPTS | REPLIES | THOUGHTS | CALLS | CALL_OUTPUTS | COMPACTIONS
"""Validated items of every kind, without ids."""

MESSAGES_MADE = st.builds(
    Message,
    id=st.just("msg_1"),
    status=STATUSES,
    content=st.lists(
        st.builds(OutputText, TEXTS, logprobs=st.sampled_from([(), (LOGPROB,)])), max_size=2
    ).map(tuple),
)
THOUGHTS_MADE = st.builds(
    Reasoning,
    id=st.just("rs_1"),
    status=STATUSES,
    content=st.lists(st.builds(ReasoningText, TEXTS), max_size=2).map(tuple),
)
CALLS_MADE = st.builds(FunctionCall, st.just("fc_1"), NAMES, NAMES, TEXTS, STATUSES)
COMPACTIONS_MADE = st.builds(Compaction, st.just("cmp_1"), TEXTS.filter(bool))
OUTPUT_ITEMS = MESSAGES_MADE | THOUGHTS_MADE | CALLS_MADE | COMPACTIONS_MADE
"""Items of responses, of every kind."""


PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


@st.composite
def dialogues(draw: DrawFn) -> list[InputItem | OutputItem]:
    """What both sides said, in order, each output behind its call. All ids that are there are different."""
    said: list[InputItem | OutputItem] = []
    unanswered: list[str] = []
    for number in range(draw(st.integers(0, 8))):
        kinds = [PROMPTS, REPLIES, THOUGHTS, CALLS, MESSAGES_MADE, THOUGHTS_MADE, CALLS_MADE]
        kinds += [CALL_OUTPUTS, CALL_OUTPUTS] if unanswered else []
        item: Any = draw(st.one_of(kinds))
        kind = sent(item).type
        item_id: str | None = f"{PREFIXES[kind or '']}_{number}"
        if isinstance(item, InputItem):
            item_id = draw(st.sampled_from([None, "", item_id]))
        item = msgspec.structs.replace(item, id=item_id)
        if kind == "function_call":
            unanswered.append(f"call_{number}")
            item = msgspec.structs.replace(item, call_id=unanswered[-1])
        elif kind == "function_call_output":
            answered = unanswered.pop(draw(st.integers(0, len(unanswered) - 1)))
            item = msgspec.structs.replace(item, call_id=answered)
        said.append(item)
    return said


class Hop(msgspec.Struct):
    """A request and what was answered."""

    given: list[InputItem] = []
    made: list[OutputItem] = []


def hops(said: Iterable[InputItem | OutputItem], cuts: set[int]) -> list[Hop]:
    """A dialogue cut before the places in ``cuts``, and where a request has to follow an answer."""
    result = [Hop()]
    for place, item in enumerate(said):
        if place in cuts or (isinstance(item, InputItem) and result[-1].made):
            result.append(Hop())
        if isinstance(item, InputItem):
            result[-1].given.append(item)
        else:
            result[-1].made.append(item)
    return result


Variant = Literal["listed", "bare", "null", "noisy"]
VARIANTS: tuple[Variant, ...] = ("listed", "bare", "null", "noisy")
_OPTIONAL_KEYS = ("status", "annotations", "logprobs", "phase")


def replayed(encoded: bytes, variant: Variant = "listed") -> InputItem:
    """An item as a client sends it that got it from this server, validated.

    It is sent as it was listed, with the keys left out that need not be sent, with null in them, or with
    more in them than this server ever says.
    """
    (item,) = read_input([msgspec.convert(_as_sent(json.loads(encoded), variant), InputItem)])
    return item


def sent(item: InputItem | OutputItem) -> InputItem:
    """What a client sends of an item; what a response made comes back as it was."""
    return item if isinstance(item, InputItem) else replayed(encode(item))


def _as_sent(value: Any, variant: Variant) -> Any:
    if isinstance(value, list):
        return [_as_sent(member, variant) for member in value]
    if not isinstance(value, dict):
        return value
    listed = {key: _as_sent(member, variant) for key, member in value.items()}
    needed = {key: member for key, member in listed.items() if key not in _OPTIONAL_KEYS}
    match variant:
        case "listed":
            return listed
        case "bare":
            return needed
        case "null":
            return dict.fromkeys((*_OPTIONAL_KEYS, "encrypted_content")) | needed
        case "noisy":
            noise = {"annotations": [{"type": "url_citation", "url": "u"}], "logprobs": [{"token": "x"}]}
            return {"phase": "final_answer", "status": "incomplete", "created_by": "me"} | noise | needed
