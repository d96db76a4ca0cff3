"""The AI SDK of Vercel in dialogues of three turns. ``node/ai_sdk.mjs`` plays; what it sends is judged here.

Needs Node.js and npm: run it with ``pytest -m node``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio
from support.heard_requests import Heard, heard_requests
from support.served import serving_script
from support.stored_state import StoredState, said
from support.three_turns import ANSWERS, ROWS, TEXTS, assert_whole_history

if TYPE_CHECKING:
    from pathlib import Path

    from support.published import Json

pytestmark = pytest.mark.node


class Dialogue(NamedTuple):
    """What became of a scenario: the answers, and the requests for them."""

    answers: list[str]
    heard: list[Heard]

    @property
    def inputs(self) -> list[list[Json]]:
        """The input of every request."""
        return [request.body["input"] for request in self.heard if request.body is not None]

    def sent(self, key: str) -> list[object]:
        """One field of every request."""
        return [request.body.get(key) for request in self.heard if request.body is not None]


async def play(lane: Path, url: str, heard: list[Heard], scenario: str) -> Dialogue:
    command = ["node", str(lane / "ai_sdk.mjs"), url, scenario, *TEXTS]
    ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert [(request.method, request.path) for request in heard] == [("POST", "/v1/responses")] * len(TEXTS)
    return Dialogue(json.loads(ended.stdout), heard)


@pytest.mark.parametrize("scenario", ["store", "storeStream"])
async def test_stored_items_come_back_as_references(node_lane: Path, scenario: str) -> None:
    with heard_requests() as heard:
        async with serving_script(*ROWS) as served:
            played = await play(node_lane, served.url, heard, scenario)
            assert_whole_history(served, system="Be brief.")
    assert played.answers == ANSWERS
    assert played.sent("store") == [True] * 3
    references = [item["id"] for item in played.inputs[-1] if item.get("type") == "item_reference"]
    assert [reference.partition("_")[0] for reference in references] == ["msg", "rs", "msg"]


@pytest.mark.parametrize("scenario", ["noStore", "noStoreStream"])
async def test_what_is_not_stored_comes_back_in_full(node_lane: Path, scenario: str) -> None:
    with heard_requests() as heard:
        async with serving_script(*ROWS) as served:
            played = await play(node_lane, served.url, heard, scenario)
            assert_whole_history(served, system="Be brief.")
    assert played.answers == ANSWERS
    assert played.sent("store") == [False] * 3
    roles = [item.get("role", item.get("type")) for item in played.inputs[-1]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]


@pytest.mark.parametrize("scenario", ["chain", "chainStream"])
async def test_a_chain(node_lane: Path, scenario: str) -> None:
    with heard_requests() as heard:
        async with serving_script(*ROWS) as served:
            played = await play(node_lane, served.url, heard, scenario)
            assert_whole_history(served, system="Be brief.")
    assert played.answers == ANSWERS
    assert [len(items) for items in played.inputs] == [1, 1, 1], "the server knows the rest"
    assert [bool(parent) for parent in played.sent("previous_response_id")] == [False, True, True]


async def test_a_conversation(node_lane: Path) -> None:
    with heard_requests() as heard:
        async with serving_script(*ROWS) as served:
            played = await play(node_lane, served.url, heard, "conversation")
            assert_whole_history(served)
            items = await StoredState(served).all_items("chat-1")
    assert played.answers == ANSWERS
    messages = [item for item in items if item["type"] == "message"]
    assert said(messages) == [
        f"{role}: {text}"
        for turn in zip(TEXTS, ANSWERS, strict=True)
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
