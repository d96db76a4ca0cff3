"""Items in their stored form: what comes back from it, and that clients may be shown it."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.dialogues import INPUT_ITEMS, LOGPROB, OUTPUT_ITEMS, VARIANTS, replayed, sent
from support.published import ITEM_WAIVERS, Waiver, item_list_differences

from mlxcel_trio.core.history import to_messages
from mlxcel_trio.core.pagination import PageQuery, page_of
from mlxcel_trio.core.stored_items import fresh_id, read_items, store_input, store_output
from mlxcel_trio.core.validation.items import read_input
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.items import InputItem, InputPart
from mlxcel_trio.protocol.responses import (
    Compaction,
    FunctionCall,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)

if TYPE_CHECKING:
    from support.dialogues import Variant
    from support.published import Json

    from mlxcel_trio.core.messages import ChatMessage
    from mlxcel_trio.core.transcript import StoredItem
    from mlxcel_trio.protocol.responses import OutputItem


def listed(stored: StoredItem) -> Json:
    item: Json = json.loads(stored.encoded)
    return item


def page(*stored: StoredItem) -> Json:
    body: Json = json.loads(encode(page_of(stored, PageQuery("asc", 100))))
    return body


def messages(item: InputItem) -> list[ChatMessage]:
    """Compaction items are no messages; what they hold is rendered by others."""
    return [] if item.type == "compaction" else to_messages([item], None)


def part(kind: str, text: str) -> InputPart:
    return InputPart(type=kind, text=text)


INPUT: dict[str, tuple[InputItem, Json]] = {
    "a string": (
        InputItem(type="message", role="user", content="hi"),
        {
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi"}],
        },
    ),
    "parts of chat completions": (
        InputItem(type="message", role="developer", content=[part("text", "a"), part("input_text", "b")]),
        {
            "type": "message",
            "status": "completed",
            "role": "developer",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
    ),
    "a reply": (
        InputItem(
            type="message",
            status="incomplete",
            role="assistant",
            content=[part("input_text", "a"), InputPart(type="refusal", refusal="no")],
        ),
        {
            "type": "message",
            "status": "incomplete",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "no"},
            ],
        },
    ),
    "a reply as a string": (
        InputItem(type="message", role="assistant", content=""),
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}],
        },
    ),
    "a message without parts": (
        InputItem(type="message", role="user", content=[]),
        {"type": "message", "status": "completed", "role": "user", "content": []},
    ),
    "a call": (
        InputItem(type="function_call", call_id="c", name="f", arguments="{"),
        {"type": "function_call", "status": "completed", "call_id": "c", "name": "f", "arguments": "{"},
    ),
    "an output": (
        InputItem(type="function_call_output", status="incomplete", call_id="c", output="3 m"),
        {"type": "function_call_output", "status": "incomplete", "call_id": "c", "output": "3 m"},
    ),
    "an output in parts": (
        InputItem(type="function_call_output", call_id="c", output=[part("output_text", "3 m")]),
        {
            "type": "function_call_output",
            "status": "completed",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "3 m"}],
        },
    ),
    "bare reasoning": (InputItem(type="reasoning"), {"type": "reasoning", "summary": []}),
    "reasoning that says nothing": (
        InputItem(type="reasoning", content=[], summary=[], encrypted_content=""),
        {"type": "reasoning", "content": [], "summary": [], "encrypted_content": ""},
    ),
    "reasoning": (
        InputItem(
            type="reasoning",
            status="completed",
            content=[part("text", "t")],
            summary=[part("summary_text", "s")],
            encrypted_content="e",
        ),
        {
            "type": "reasoning",
            "status": "completed",
            "content": [{"type": "reasoning_text", "text": "t"}],
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "e",
        },
    ),
    "a compaction": (
        InputItem(type="compaction", status="completed", encrypted_content="e30"),
        {"type": "compaction", "encrypted_content": "e30"},
    ),
}


@pytest.mark.parametrize(("item", "expected"), INPUT.values(), ids=INPUT)
def test_the_form_in_which_items_are_listed(item: InputItem, expected: Json) -> None:
    stored = store_input(item, "its_id")
    assert stored.id == "its_id"
    assert listed(stored) == {"id": "its_id"} | expected


OUTPUT: dict[str, OutputItem] = {
    "message": Message("msg_1", "incomplete", (OutputText("a"), OutputText(""))),
    "nothing": Message("msg_1", "completed", ()),
    "call": FunctionCall("fc_1", "call_1", "f", '{"a": ', "incomplete"),
    "reasoning": Reasoning("rs_1", "completed", (ReasoningText("t"),)),
    "compaction": Compaction("cmp_1", "e30"),
}


@pytest.mark.parametrize("item", OUTPUT.values(), ids=OUTPUT)
def test_what_a_response_made_is_listed_as_the_response_has_it(item: OutputItem) -> None:
    assert listed(store_output(item)) == json.loads(encode(item))


def test_log_probabilities_are_not_stored() -> None:
    said = Message("msg_1", "completed", (OutputText("a", logprobs=(LOGPROB,)), OutputText("b")))
    stored = listed(store_output(said))
    assert [part["logprobs"] for part in stored["content"]] == [[], []]
    assert [part["text"] for part in stored["content"]] == ["a", "b"]
    assert said.content[0].logprobs == (LOGPROB,)  # the response keeps its own


@given(INPUT_ITEMS, st.text(min_size=1, max_size=5))
@settings(deadline=None)
def test_what_was_given_comes_back(item: InputItem, item_id: str) -> None:
    stored = store_input(item, item_id)
    (read,) = read_items([stored])
    assert messages(read) == messages(item)
    kept = ("type", "role", "call_id", "name", "arguments", "encrypted_content")
    assert [getattr(read, name) for name in kept] == [getattr(item, name) for name in kept]
    assert (read.id, stored.id) == (item_id, item_id)
    assert read.status == (item.status or (None if item.type in ("reasoning", "compaction") else "completed"))


@given(OUTPUT_ITEMS)
@settings(deadline=None)
def test_what_was_made_comes_back(item: OutputItem) -> None:
    stored = store_output(item)
    (read,) = read_items([stored])
    assert messages(read) == messages(sent(item))
    assert (read.id, stored.id) == (item.id, item.id)
    assert read.status == getattr(item, "status", None)


@given(INPUT_ITEMS.map(lambda item: store_input(item, "its_id")) | OUTPUT_ITEMS.map(store_output))
@settings(deadline=None)
def test_storing_what_was_stored_changes_nothing(stored: StoredItem) -> None:
    (read,) = read_items([stored])
    assert read_input([read]) == (read,)  # a client may send what it was shown
    assert listed(store_input(read, stored.id)) == listed(stored)


@given(OUTPUT_ITEMS, st.sampled_from(VARIANTS))
@settings(deadline=None)
def test_it_does_not_matter_how_a_client_sends_back_what_was_made(item: OutputItem, how: Variant) -> None:
    stored = store_output(item)
    (original,) = read_items([stored])
    (again,) = read_items([store_input(replayed(encode(item), how), item.id)])
    assert replace(again, status=None) == replace(original, status=None)


@given(
    st.lists(
        INPUT_ITEMS.map(lambda item: store_input(item, "x")) | OUTPUT_ITEMS.map(store_output), max_size=4
    )
)
@settings(deadline=None)
def test_lists_are_those_of_the_published_models(stored: list[StoredItem]) -> None:
    assert item_list_differences(page(*stored)) == []


DAMAGE: dict[str, Json] = {
    "an unknown key": {"extra": 1},
    "no id": {"id": None},
    "an unknown type": {"status": "done"},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_the_published_models_are_read_strictly(damage: Json) -> None:
    body = page(store_input(InputItem(type="message", role="user", content="hi"), "msg_1"))
    body["data"][0] |= damage
    assert {difference.model for difference in item_list_differences(body)} == {"openai", "openresponses"}


@pytest.mark.parametrize("waiver", ITEM_WAIVERS, ids=lambda waiver: f"{waiver.model}-{waiver.path}")
def test_every_waiver_is_needed(waiver: Waiver) -> None:
    others = [other for other in ITEM_WAIVERS if other is not waiver]
    pages = [page(store_output(item)) for item in OUTPUT.values()]
    found = [difference for body in pages for difference in item_list_differences(body, others)]
    assert found
    assert all(waiver.covers(difference) for difference in found)


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        ("message", "msg"),
        ("function_call", "fc"),
        ("function_call_output", "fco"),
        ("reasoning", "rs"),
        ("compaction", "cmp"),
    ],
)
def test_new_ids_tell_the_kind(kind: str, prefix: str) -> None:
    numbers = count(1)
    assert (
        fresh_id(InputItem(type=kind, id="old"), lambda prefix: f"{prefix}_{next(numbers)}") == f"{prefix}_1"
    )


def test_references_are_nothing_to_store() -> None:
    with pytest.raises(ValueError, match="Resolve it first"):
        store_input(InputItem(type="item_reference", id="msg_1"), "msg_1")


def test_nothing_is_escaped_that_need_not_be() -> None:
    text = "ä👩🏽‍🚀" * 100
    stored = store_input(InputItem(type="message", role="user", content=text), "msg_1")
    assert text.encode() in stored.encoded
    assert len(stored.encoded) < len(text.encode()) + 120
