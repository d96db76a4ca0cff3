"""The OpenAI SDK for Node.js against the server. ``node/run.mjs`` plays; what it prints is judged here.

Needs Node.js and npm: run it with ``pytest -m node``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.served import Served, serving_script
from support.three_turns import ANSWERS, TEXTS, assert_whole_history
from support.three_turns import ROWS as THREE_TURNS
from support.wire import check_stream, validate_response

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from pathlib import Path

    from support.published import Json

pytestmark = pytest.mark.node

ROWS = (
    ScriptRow(when="think", emit=("<think>", "hm", "</think>", "\n\n", "Do", "ne")),
    ScriptRow(when="slow", prefill_delay=0.3, emit=("late",)),
    ScriptRow(when="break", emit=("a",), then="raise"),
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(emit=("hel", "lo")),
)


async def play(node_lane: Path, served: Served, scenario: str, *texts: str) -> Any:
    command = ["node", str(node_lane / "run.mjs"), served.url, scenario, *texts]
    ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return json.loads(ended.stdout)


def as_sent(value: Any) -> Any:
    """What the SDK read, without what it adds."""
    if isinstance(value, dict):
        added = {"output_text", "output_parsed", "parsed", "snapshot", "_request_id"}
        return {key: as_sent(member) for key, member in value.items() if key not in added}
    return [as_sent(member) for member in value] if isinstance(value, list) else value


def checked(events: list[Json]) -> Json:
    """The final response of a stream that the SDK passed on event by event."""
    return check_stream(as_sent(events))


async def test_create(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        played = await play(node_lane, served, "create")
    assert played["text"] == "hello"
    validate_response(as_sent(played["response"]))


async def test_create_as_a_stream(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        played = await play(node_lane, served, "createStream")
    final = checked(played["events"])
    assert [item["type"] for item in final["output"]] == ["reasoning", "message"]


async def test_stream(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        played = await play(node_lane, served, "stream")
    assert played["snapshots"] == ["Do", "Done"]
    assert played["text"] == "Done"
    validate_response(as_sent(played["final"]))


async def test_stream_takes_pings(node_lane: Path) -> None:
    async with serving_script(*ROWS, sse_ping_interval=0.05) as served:
        played = await play(node_lane, served, "streamOfEvents")
    final = checked(played["events"])
    assert final["output"][0]["content"][0]["text"] == "late"
    assert [event["type"] for event in played["events"]].count("response.in_progress") >= 3


async def test_a_failure_in_a_stream(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        played = await play(node_lane, served, "failedStream")
    assert checked(played["events"])["error"]["code"] == "server_error"


async def test_output_is_taken_back_as_input(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        assert await play(node_lane, served, "replay") == {"text": "hello"}


async def test_errors(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        played = await play(node_lane, served, "errors")
    classes = {name: (error["name"], error["status"]) for name, error in played.items()}
    assert classes == {
        "badRequest": ("BadRequestError", 400),
        "badStream": ("BadRequestError", 400),
        "badModel": ("BadRequestError", 400),
        "failure": ("InternalServerError", 500),
        "notFound": ("NotFoundError", 404),
        "timeout": ("APIConnectionTimeoutError", None),
    }
    assert played["badRequest"]["param"] == "temperature"
    assert played["badStream"]["param"] == "input"
    assert played["badModel"]["code"] == played["notFound"]["code"] == "model_not_found"
    assert played["failure"]["code"] == played["failure"]["type"] == "server_error"
    assert played["badRequest"]["requestId"].startswith("req_")


async def test_models(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        assert await play(node_lane, served, "models") == {"listed": ["scripted"], "retrieved": "scripted"}


async def test_responses_by_id(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        played = await play(node_lane, served, "stored")
    created, retrieved, cancelled = (as_sent(played[key]) for key in ("created", "retrieved", "cancelled"))
    validate_response(retrieved)
    assert created == retrieved == cancelled
    assert played["oldestFirst"] == [f"item {number}" for number in range(25)]
    assert played["newestFirst"] == played["oldestFirst"][::-1]
    gone = played["gone"]
    assert (gone["name"], gone["status"], gone["code"]) == ("NotFoundError", 404, "response_not_found")
    again = played["streamedAgain"]
    assert (again["name"], again["status"], again["param"]) == ("BadRequestError", 400, "stream")
    assert played["counted"] == retrieved["usage"]["input_tokens"]


async def test_cancel_a_stream(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        played = await play(node_lane, served, "cancel")
    final = checked(played["events"])
    assert final["status"] == "cancelled"
    assert as_sent(played["cancelled"]) == final


async def test_a_chain(node_lane: Path) -> None:
    async with serving_script(*THREE_TURNS) as served:
        played = await play(node_lane, served, "chain", *TEXTS)
        assert_whole_history(served)
    assert played["answers"] == ANSWERS
    orphan = played["orphan"]
    assert (orphan["name"], orphan["code"]) == ("BadRequestError", "previous_response_not_found")


async def test_a_conversation(node_lane: Path) -> None:
    async with serving_script(*THREE_TURNS) as served:
        played = await play(node_lane, served, "conversation", *TEXTS)
        assert_whole_history(served)
    assert played["answers"] == ANSWERS
    assert played["types"] == ["message", "message", "message", "reasoning", "message", "message", "message"]
    assert played["metadata"] == {"topic": "ships"}
    assert played["left"] == len(played["types"]) - 1
    gone = played["gone"]
    assert (gone["name"], gone["status"], gone["code"]) == ("NotFoundError", 404, "conversation_not_found")


async def test_an_abort_frees_the_slot(node_lane: Path) -> None:
    async with serving_script(*ROWS) as served:
        played = await play(node_lane, served, "abort")
        await served.idle()
        lags = served.engine.removal_lags()
    assert played["json"]["name"] == played["stream"]["name"] == "APIUserAbortError"
    assert played["deltas"] == 3
    assert len(lags) == 3
    assert max(lags) <= 1
