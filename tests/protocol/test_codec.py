"""Decoding request bodies: paths in errors, bad bytes, nesting, and what null means."""

from __future__ import annotations

import contextlib
import json
import sys
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import decode, encode, encode_to_keep
from mlxcel_trio.protocol.conversations import (
    Conversation,
    CreateConversation,
    CreateItems,
    DeletedConversation,
    UpdateConversation,
)
from mlxcel_trio.protocol.items import InputItem
from mlxcel_trio.protocol.requests import CreateResponse

Kind = type[CreateResponse] | type[CreateConversation] | type[UpdateConversation] | type[CreateItems]
KINDS: list[Kind] = [CreateResponse, CreateConversation, UpdateConversation, CreateItems]
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"model": 3}', "model"),
        ('{"input": {"a": 1}}', "input"),
        ('{"input": [{"role": 3}]}', "input[0].role"),
        ('{"input": [{}, {"content": [{"type": 1}]}]}', "input[1].content[0].type"),
        ('{"input": [3]}', "input[0]"),
        ('{"metadata": {"a": 3}}', "metadata"),
        ('{"temperature": "hot"}', "temperature"),
        ('{"temperature": true}', "temperature"),
        ('{"temperature": 1e999}', "temperature"),
        ('{"max_output_tokens": 1.5}', "max_output_tokens"),
        ('{"tools": [{"function": {"strict": "yes"}}]}', "tools[0].function.strict"),
        ('{"text": {"format": []}}', "text.format"),
        ('{"instructions": {"a": 1}}', "instructions"),
        ("[]", None),
        ("3", None),
        ("null", None),
    ],
)
def test_wrong_types_name_the_field(body: str, param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(body.encode(), CreateResponse)
    assert caught.value.param == param
    if param is not None:
        assert param in caught.value.message


@pytest.mark.parametrize("kind", [CreateConversation, CreateItems])
@pytest.mark.parametrize(
    ("items", "param"),
    [
        ("{}", "items"),
        ('"hi"', "items"),
        ("[3]", "items[0]"),
        ("[null]", "items[0]"),
        ('["hi"]', "items[0]"),
        ('[{"content": 3}]', "items[0].content"),
        ('[{}, {"content": ["hi"]}]', "items[1].content[0]"),
        ('[{}, {"content": [{"text": "a"}, {"text": 1}]}]', "items[1].content[1].text"),
        ('[{"id": 1}]', "items[0].id"),
        ('[{"status": true}]', "items[0].status"),
        ('[{"summary": "x"}]', "items[0].summary"),
        ('[{"arguments": {"a": 1}}]', "items[0].arguments"),
    ],
)
def test_wrong_types_in_the_items_of_a_conversation(
    kind: type[CreateConversation | CreateItems], items: str, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(b'{"items": ' + items.encode() + b"}", kind)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message


@pytest.mark.parametrize("kind", [CreateResponse, CreateConversation, UpdateConversation])
@pytest.mark.parametrize("metadata", ['"x"', "[]", "1", '{"a": 1}', '{"a": null}', '{"a": {"b": "c"}}'])
def test_wrong_types_in_metadata(kind: Kind, metadata: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(b'{"metadata": ' + metadata.encode() + b"}", kind)
    assert caught.value.param == "metadata"


@pytest.mark.parametrize(
    ("kind", "field"), [(CreateResponse, "input"), (CreateConversation, "items"), (CreateItems, "items")]
)
def test_a_field_of_a_foreign_item_names_the_items_type(kind: Kind, field: str) -> None:
    items = '[{"type": "message"}, {"type": "computer_call_output", "output": {"a": 1}}]'
    with pytest.raises(InvalidRequestError, match="in an item of type 'computer_call_output'") as caught:
        decode(f'{{"{field}": {items}}}'.encode(), kind)
    assert caught.value.param == f"{field}[1].output"


def test_a_field_that_this_body_does_not_have_is_no_reason_to_fail() -> None:
    assert decode(b'{"input": 3, "items": []}', CreateItems) == CreateItems(items=[])
    with pytest.raises(InvalidRequestError) as caught:
        decode(b'{"input": 3, "items": [{"type": "x", "output": 3}]}', CreateItems)
    assert caught.value.param == "items[0].output"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"input": "a"} x',
        b"{'input': 'a'}",
        b'{"temperature": NaN}',
        b'{"input": "a\xff", "items": [{"id": "a\xff"}], "metadata": {"a": "a\xff"}}',
        b'{"input": "\\ud800", "items": [{"id": "\\ud800"}], "metadata": {"a": "\\ud800"}}',
        b"[" * 200_000,
        b'{"unknown": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"tools": [{"parameters": ' + b"[" * 20_000 + b"]" * 20_000 + b"}]}",
    ],
)
@each_kind
def test_bad_bodies(body: bytes, kind: Kind) -> None:
    with pytest.raises(InvalidRequestError):
        decode(body, kind)


@each_kind
def test_null_equals_absent(kind: Kind) -> None:
    names = {field.name for field in msgspec.structs.fields(kind)}
    decoded = msgspec.structs.asdict(decode(msgspec.json.encode(dict.fromkeys(names)), kind))
    assert decoded.keys() == names
    for name, value in decoded.items():
        assert value is None or bytes(value) == b"null", name
    assert decode(b"{}", kind) == kind()


def test_null_equals_absent_in_items() -> None:
    names = [field.name for field in msgspec.structs.fields(InputItem)]
    body = msgspec.json.encode({"items": [dict.fromkeys(names)]})
    assert decode(body, CreateItems) == CreateItems(items=[InputItem()])


def test_unknown_keys_are_ignored_everywhere() -> None:
    body = b'{"x": 1, "input": [{"role": "user", "x": 1, "content": [{"type": "input_text", "x": []}]}]}'
    request = decode(body, CreateResponse)
    assert isinstance(request.input, list)
    assert request.input[0].role == "user"


@pytest.mark.parametrize(
    "rest",
    [
        b"], x",
        b'], "input": 3}',
        b'], "input": []}',
        b'], "other": "\\ud800"}',
        b'], "input": [{"type": 1}]}',
    ],
)
def test_a_wrong_type_with_more_wrong_behind_it(rest: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode(b'{"input": [{"type": "x", "output": 3}' + rest, CreateResponse)


@given(st.binary(max_size=60), st.sampled_from(KINDS))
def test_any_bytes_decode_or_are_refused(body: bytes, kind: Kind) -> None:
    with contextlib.suppress(InvalidRequestError):
        decode(body, kind)


def test_a_conversation_on_the_wire() -> None:
    conversation = Conversation(id="conv_1", created_at=123, metadata={"k": "é"})
    assert json.loads(encode(conversation)) == {
        "id": "conv_1",
        "object": "conversation",
        "created_at": 123,
        "metadata": {"k": "é"},
    }
    assert decode(encode(conversation), Conversation) == conversation
    assert json.loads(encode(DeletedConversation(id="conv_1"))) == {
        "id": "conv_1",
        "object": "conversation.deleted",
        "deleted": True,
    }


def test_what_is_kept_takes_the_memory_that_it_counts() -> None:
    text = "x" * 20_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = encode_to_keep({"text": text})
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept == msgspec.json.encode({"text": text})
    assert after - before < 1.05 * sys.getsizeof(kept)
