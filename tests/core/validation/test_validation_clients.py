"""Bodies that real clients sent: each is accepted, or refused for a reason that a rule names."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from support.client_requests import never_accepted, not_built, read_client_requests, refused_field

from mlxcel_trio.core.dialogue import continue_dialogue
from mlxcel_trio.core.history import to_messages
from mlxcel_trio.core.stored_items import store_input
from mlxcel_trio.core.transcript import EMPTY
from mlxcel_trio.core.validation import check_not_empty, not_yet, validate_create
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import decode
from mlxcel_trio.protocol.items import InputItem
from mlxcel_trio.protocol.requests import CreateResponse

if TYPE_CHECKING:
    from support.published import Json

    from mlxcel_trio.core.messages import ChatMessage
    from mlxcel_trio.core.plan import CreatePlan
    from mlxcel_trio.core.validation import ValidationContext

CREATES = [
    pytest.param(request.body, id=f"{number}-{request.client}")
    for number, request in read_client_requests().items()
    if request.creates
]
each_body = pytest.mark.parametrize("body", CREATES)


def attempt(body: Json, context: ValidationContext) -> CreatePlan | InvalidRequestError:
    try:
        return validate_create(decode(json.dumps(body).encode(), CreateResponse), context)
    except InvalidRequestError as error:
        return error


def messages(plan: CreatePlan) -> list[ChatMessage]:
    """What is rendered where every reference is found and a chain has the calls that its outputs answer."""
    answered = [item.call_id for item in plan.items if item.type == "function_call_output"]
    calls = [
        InputItem(type="function_call", call_id=call_id, name="f", arguments="{}") for call_id in answered
    ]
    history = EMPTY.append(store_input(call, f"fc_{call.call_id}") for call in calls)
    dialogue = continue_dialogue(
        history if plan.previous_response_id else EMPTY,
        plan.items,
        find_item=lambda item_id: store_input(
            InputItem(type="message", role="assistant", content="x"), item_id
        ),
        new_id="{}_new".format,
    )
    check_not_empty(dialogue.items, plan.instructions)
    return to_messages(dialogue.items, plan.instructions)


@each_body
def test_as_built(body: Json, context: ValidationContext) -> None:
    result = attempt(body, context)
    assert getattr(result, "param", None) == refused_field(body)
    if isinstance(result, InvalidRequestError):
        is_late = "not supported by this version" in result.message
        assert is_late == (next(never_accepted(body), None) is None)
    else:
        assert result.stream is bool(body.get("stream"))
        assert result.store is (body.get("store") is not False)
        assert result.previous_response_id == body.get("previous_response_id")
        assert messages(result)


@each_body
def test_once_everything_is_built(
    body: Json, context: ValidationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(not_yet, "_NOT_YET", ())
    result = attempt(body, context)
    assert getattr(result, "param", None) == next(never_accepted(body), None)
    if not isinstance(result, InvalidRequestError):
        assert messages(result)


def test_the_rules_have_something_to_say() -> None:
    bodies = [request.body or {} for request in read_client_requests().values() if request.creates]
    never = Counter(next(never_accepted(body), "-") for body in bodies)
    assert never == {"-": 125, "truncation": 5, "tools[4].type": 1}
    later = Counter(next(not_built(body), "accepted") for body in bodies if not any(never_accepted(body)))
    assert later == {
        "accepted": 52,
        "tools": 61,
        "text.format": 12,
    }
