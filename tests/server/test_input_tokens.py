"""Counting the tokens of a prompt without generating anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.served import body_of, serving_script
from support.stored_state import CALL, CALL_OUTPUT, StoredState, reference, user

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.published import Json
    from support.served import Served

    Say = Callable[..., Awaitable[Json]]

ROWS = (ScriptRow(when="one", emit=("eins",)), ScriptRow(emit=("ok",)))


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving_script(*ROWS) as running:
        yield running


@pytest.fixture
def state(served: Served) -> StoredState:
    return StoredState(served)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "one"},
        {"input": "one", "instructions": "Be terse."},
        {"input": [user("one"), CALL, CALL_OUTPUT]},
        {"input": "one", "stream": True, "store": False, "max_output_tokens": 1},
        {"input": "two", "previous_response_id": "$"},
        {"input": "two", "conversation": "c"},
        {"input": "two", "conversation": "new"},
        {"input": [{"type": "item_reference", "id": "$item"}]},
    ],
)
async def test_the_count_is_that_of_the_request_and_leaves_nothing(
    served: Served, state: StoredState, fields: Json
) -> None:
    first = await served.create(input="one", conversation="c")
    if "previous_response_id" in fields:
        fields = fields | {"previous_response_id": first["id"]}
    if fields["input"] == [{"type": "item_reference", "id": "$item"}]:
        fields = fields | {"input": [reference(first["output"][0])]}
    counted = await state.count(**fields)
    assert len(await state.all_items("c")) == 2
    if fields.get("conversation") == "new":
        await state.assert_no_conversation("new")
    response = (
        (await served.stream(**fields))[-1]["response"]
        if "stream" in fields
        else await served.create(**fields)
    )
    assert counted == response["usage"]["input_tokens"]


@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/responses/input_tokens"])
async def test_the_model_may_be_left_out(served: Served, state: StoredState, path: str) -> None:
    counts = [
        (await served.client.post(path, json={"input": "one"} | more)).json()["input_tokens"]
        for more in ({}, {"model": None}, {"model": "local"}, {"model": "scripted"})
    ]
    assert len(set(counts)) == 1
    assert counts[0] == await state.count(input="one")
    assert not served.engine.prompts(), "nothing is generated"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": "gpt-5"}, "model", "model_not_found"),
        ({"input": []}, "input", None),
        ({"input": "  "}, "input", None),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id", "item_not_found"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"temperature": 3}, "temperature", None),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", None),
    ],
)
async def test_what_cannot_be_counted(state: StoredState, fields: Json, param: str, code: str | None) -> None:
    error = await state.refusal("POST", "/v1/responses/input_tokens", body_of(fields))
    assert (error["param"], error["code"]) == (param, code)


async def test_a_prompt_that_does_not_fit_can_be_counted() -> None:
    async with serving_script(*ROWS, context_window=64) as served:
        text = "one " * 200
        reply = await served.refusal(input=text)
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert await StoredState(served).count(input=text) > 64
