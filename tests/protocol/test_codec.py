"""Decoding request bodies: paths in errors, bad bytes, nesting, and what null means."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import decode
from mlxcel_trio.protocol.requests import CreateResponse


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


def test_a_field_of_a_foreign_item_names_the_items_type() -> None:
    body = b'{"input": [{"type": "message"}, {"type": "computer_call_output", "output": {"a": 1}}]}'
    with pytest.raises(InvalidRequestError, match="computer_call_output") as caught:
        decode(body, CreateResponse)
    assert caught.value.param == "input[1].output"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"input": "a"} x',
        b"{'input': 'a'}",
        b'{"temperature": NaN}',
        b'{"input": "a\xff"}',
        b'{"input": "\\ud800"}',
        bytes.fromhex("7b226d6f64656c223a226c6f63616c222c22696e707574223a22c4e3bac3227d"),
        b"[" * 200_000,
        b'{"unknown": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"tools": [{"parameters": ' + b"[" * 20_000 + b"]" * 20_000 + b"}]}",
    ],
)
def test_bad_bodies(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode(body, CreateResponse)


def test_null_equals_absent() -> None:
    names = {field.name for field in msgspec.structs.fields(CreateResponse)}
    body = msgspec.json.encode(dict.fromkeys(names))
    assert msgspec.structs.asdict(decode(body, CreateResponse)).keys() == names
    for name, value in msgspec.structs.asdict(decode(body, CreateResponse)).items():
        assert value is None or bytes(value) == b"null", name


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


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        decode(body, CreateResponse)
