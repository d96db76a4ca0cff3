"""Requests that real clients sent, over HTTP: each is answered, refused for a field, or waits for a path.

One server takes them all, one after the other; each answer is then judged by a test of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from support.case_runner import Exchange, Step, exchange
from support.client_requests import read_client_requests, refused_field
from support.served import serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from support.published import Json
    from support.served import Served

ANSWER = "Hello there."
REQUESTS = read_client_requests()

# fmt: off
WAITING: dict[int, str] = {
    **dict.fromkeys((47, 48, 49, 50, 144), "conversations"),
    **dict.fromkeys((117, 118, 136, 137, 143), "stored responses"),
    139: "background responses",
    140: "compaction",
    141: "/v1/responses/input_tokens",
}
# fmt: on
CREATES = [number for number, request in REQUESTS.items() if request.creates]


def ids(number: object) -> str:
    assert isinstance(number, int)
    return f"{number}-{REQUESTS[number].client}"


@pytest.fixture(scope="module")
def outcomes() -> dict[int, Exchange | Exception]:
    """What came of each request: the exchange, read and strictly checked, or what reading it raised."""

    async def play_all() -> dict[int, Exchange | Exception]:
        async with serving_script(ScriptRow(emit=("Hel", "lo", " there."))) as served:
            return {number: await play(number, served) for number in REQUESTS}

    async def play(number: int, served: Served) -> Exchange | Exception:
        request = REQUESTS[number]
        try:
            return await exchange(served, Step(request.method, request.path, request.body))
        except Exception as error:
            return error

    return trio.run(play_all)


def read(outcomes: dict[int, Exchange | Exception], number: int) -> Exchange:
    outcome = outcomes[number]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@pytest.mark.parametrize("number", CREATES, ids=ids)
def test_a_create_request(outcomes: dict[int, Exchange | Exception], number: int) -> None:
    body = REQUESTS[number].body or {}
    made = read(outcomes, number)
    # The server stores nothing yet, and such a server says so by a code.
    field = refused_field(body, stores=False)
    if field is None:
        assert_answered(made, body)
    else:
        made.refused(field, "store_disabled" if field == "previous_response_id" else None)


def assert_answered(made: Exchange, body: Json) -> None:
    response = made.response
    assert bool(made.events) is bool(body.get("stream"))
    assert (response["status"], text_of(response)) == ("completed", ANSWER)
    # What it was told, it tells: these are never changed on the way.
    for key in ("metadata", "max_output_tokens", "safety_identifier", "prompt_cache_key", "user", "top_p"):
        if body.get(key) is not None:
            assert response[key] == body[key]
    wanted = body.get("top_logprobs") or "message.output_text.logprobs" in (body.get("include") or ())
    (part,) = response["output"][0]["content"]
    spelled = "".join(entry["token"] for entry in part["logprobs"])
    assert spelled == (ANSWER if wanted else "")


@pytest.mark.parametrize("number", sorted(WAITING), ids=ids)
def test_a_path_that_is_not_built_says_so(outcomes: dict[int, Exchange | Exception], number: int) -> None:
    made = read(outcomes, number)
    assert made.reply.status_code in (404, 405)
    assert made.reply.json()["error"]["type"] == "invalid_request_error"
    assert made.reply.json()["error"]["param"] is None


def test_every_request_is_a_create_request_or_waits() -> None:
    assert {*CREATES, *WAITING} == REQUESTS.keys()
    assert not WAITING.keys() & set(CREATES)
    assert (len(REQUESTS), len(WAITING)) == (144, 13)
