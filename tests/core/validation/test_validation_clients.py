"""Bodies that real clients sent: each is accepted, or refused for a reason that a rule below names."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlxcel_trio.core.history import to_messages
from mlxcel_trio.core.validation import not_yet, validate_create
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import decode_create

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_trio.core.plan import CreatePlan
    from mlxcel_trio.core.validation import ValidationContext

LINES = (Path(__file__).parents[2] / "data" / "client_requests.jsonl").read_text("utf-8").splitlines()
CREATES = [
    (number, line["client"], line["body"])
    for number, line in enumerate(map(json.loads, LINES), start=1)
    if (line["method"], line["path"]) == ("POST", "/v1/responses")
]
Body = dict[str, Any]
each_body = pytest.mark.parametrize(
    "body", [pytest.param(body, id=f"{number}-{client}") for number, client, body in CREATES]
)


def never_accepted(body: Body) -> Iterator[str]:
    """What the API of this server rules out, in the order of the checks."""
    if body.get("truncation") not in (None, "disabled"):
        yield "truncation"
    for index, tool in enumerate(body.get("tools") or ()):
        if tool["type"] != "function":
            yield f"tools[{index}].type"


def not_built(body: Body) -> Iterator[str]:
    """What this version does not do yet, in the order of its table."""
    if body.get("tools"):
        yield "tools"
    if ((body.get("text") or {}).get("format") or {"type": "text"})["type"] != "text":
        yield "text.format"
    if body.get("previous_response_id"):
        yield "previous_response_id"
    if body.get("background"):
        yield "background"
    if isinstance(body["input"], list):
        for index, item in enumerate(body["input"]):
            if item.get("type") == "item_reference":
                yield f"input[{index}].type"


def attempt(body: Body, context: ValidationContext) -> CreatePlan | InvalidRequestError:
    try:
        return validate_create(decode_create(json.dumps(body).encode()), context)
    except InvalidRequestError as error:
        return error


@each_body
def test_as_built(body: Body, context: ValidationContext) -> None:
    result = attempt(body, context)
    expected = next(never_accepted(body), None) or next(not_built(body), None)
    assert getattr(result, "param", None) == expected
    if isinstance(result, InvalidRequestError):
        is_late = "not supported by this version" in result.message
        assert is_late == (next(never_accepted(body), None) is None)
    else:
        assert result.stream is bool(body.get("stream"))
        assert result.store is (body.get("store") is not False)
        assert to_messages(result.items, result.instructions)


@each_body
def test_once_everything_is_built(
    body: Body, context: ValidationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(not_yet, "_NOT_YET", ())
    result = attempt(body, context)
    assert getattr(result, "param", None) == next(never_accepted(body), None)


def test_the_rules_have_something_to_say() -> None:
    never = Counter(next(never_accepted(body), "-") for _, _, body in CREATES)
    assert never == {"-": 125, "truncation": 5, "tools[4].type": 1}
    later = Counter(
        next(not_built(body), "accepted") for _, _, body in CREATES if not any(never_accepted(body))
    )
    assert later == {
        "accepted": 45,
        "tools": 61,
        "text.format": 12,
        "previous_response_id": 5,
        "background": 1,
        "input[1].type": 1,
    }
