"""Requests that real clients sent, over HTTP: each is answered, refused for a field, or waits for a path.

One server takes them all, one after the other, with the ids that it gave itself; each answer is then judged
by a test of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from support.client_requests import read_client_requests, refused_field
from support.exchanges import Exchange, exchange
from support.served import serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from support.published import Json

ANSWER = "Hello there."
REQUESTS = read_client_requests()
CREATES = [number for number, request in REQUESTS.items() if request.creates]
CHAINED = [number for number in CREATES if (REQUESTS[number].body or {}).get("previous_response_id")]

WAITING = {140: "compaction"}


def ids(number: object) -> str:
    assert isinstance(number, int)
    return f"{number}-{REQUESTS[number].client}"


@pytest.fixture(scope="module")
def outcomes() -> dict[int, Exchange]:
    """What came of each request, read and strictly checked."""

    async def play_all() -> dict[int, Exchange]:
        done: dict[int, Exchange] = {}
        async with serving_script(ScriptRow(emit=("Hel", "lo", " there."))) as served:
            for number, request in REQUESTS.items():
                done[number] = await exchange(served, request.step(done))
        return done

    return trio.run(play_all)


@pytest.mark.parametrize("number", CREATES, ids=ids)
def test_a_create_request(outcomes: dict[int, Exchange], number: int) -> None:
    body, made = REQUESTS[number].body or {}, outcomes[number]
    field = refused_field(body)
    if field is not None:
        made.refused(field)
    elif body.get("background"):
        assert (made.response["status"], made.response["background"]) == ("queued", True)
    else:
        assert_answered(made, body)


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


@pytest.mark.parametrize("number", CHAINED, ids=ids)
def test_a_chain_is_echoed(outcomes: dict[int, Exchange], number: int) -> None:
    sent, made = outcomes[number].step.body or {}, outcomes[number]
    if refused_field(sent) is None:
        assert made.response["previous_response_id"] == sent["previous_response_id"]


@pytest.mark.parametrize(("created", "found"), [(112, 117), (132, 136)])
def test_a_response_is_found(outcomes: dict[int, Exchange], created: int, found: int) -> None:
    assert outcomes[found].response == outcomes[created].response


@pytest.mark.parametrize(("created", "deleted"), [(112, 118), (132, 137)])
def test_a_response_is_deleted(outcomes: dict[int, Exchange], created: int, deleted: int) -> None:
    expected = {"id": outcomes[created].response["id"], "object": "response", "deleted": True}
    assert outcomes[deleted].response == expected


def test_a_job_is_cancelled_unless_it_has_ended(outcomes: dict[int, Exchange]) -> None:
    queued, cancelled = outcomes[138].response, outcomes[139].response
    assert cancelled["id"] == queued["id"]
    assert cancelled["status"] in ("cancelled", "completed")


def test_the_input_is_listed(outcomes: dict[int, Exchange]) -> None:
    (item,) = items_of(outcomes[143])
    assert said(item) == ("user", "x")


def test_tokens_are_counted(outcomes: dict[int, Exchange]) -> None:
    counted, one_letter = outcomes[141].response, outcomes[142].response["usage"]["input_tokens"]
    assert counted.keys() == {"object", "input_tokens"}
    assert counted["object"] == "response.input_tokens"
    assert one_letter <= counted["input_tokens"] <= one_letter + len("hello")


def test_a_conversation_is_kept(outcomes: dict[int, Exchange]) -> None:
    created, empty, asked, answered = (outcomes[number] for number in (47, 48, 49, 50))
    assert created.response.keys() == {"id", "object", "created_at", "metadata"}
    assert (created.response["object"], created.response["metadata"]) == ("conversation", {})
    assert items_of(empty) == []
    assert [said(item) for item in items_of(asked)] == [("user", "My name is Ann")]
    assert [said(item) for item in items_of(answered)] == [
        ("assistant", "Hello from dummy (0 tool outputs).")
    ]


def test_a_conversation_begins_with_items(outcomes: dict[int, Exchange]) -> None:
    created = outcomes[144].response
    assert created["object"] == "conversation"
    assert created["id"].startswith("conv_")


def items_of(made: Exchange) -> list[Json]:
    page = made.response
    data: list[Json] = page["data"]
    assert (page["object"], page["has_more"]) == ("list", False)
    assert (page["first_id"], page["last_id"]) == ((data[0]["id"], data[-1]["id"]) if data else ("", ""))
    return data


def said(item: Json) -> tuple[str, str]:
    assert item["type"] == "message"
    assert item["id"].startswith("msg_")
    (part,) = item["content"]
    return item["role"], part["text"]


def test_a_path_that_is_not_built_says_so(outcomes: dict[int, Exchange]) -> None:
    assert outcomes[140].error(405)["type"] == "invalid_request_error"


def test_every_request_is_judged() -> None:
    elsewhere = [number for number in REQUESTS if number not in CREATES]
    assert elsewhere == [47, 48, 49, 50, 117, 118, 136, 137, 139, 140, 141, 143, 144]
    assert WAITING.keys() <= set(elsewhere)
    assert len(REQUESTS) == 144
