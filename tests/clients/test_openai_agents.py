"""The OpenAI Agents SDK in dialogues of three turns. ``agents/play.py`` plays; what it sends is judged here.

It brings many packages of its own and is installed into an environment of its own: ``pytest -m long``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from support.heard_requests import Heard, heard_requests
from support.served import serving_script
from support.stored_state import StoredState, check_items
from support.three_turns import ANSWERS, ROWS, TEXTS, assert_whole_history

if TYPE_CHECKING:
    from support.published import Json

pytestmark = pytest.mark.long

SOURCE = Path(__file__).parent / "agents"
SYSTEM = "Be brief."
KINDS = ["message", "message", "message", "reasoning", "message", "message", "message"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the SDK."""
    environment = tmp_path_factory.mktemp("agents") / "venv"
    interpreter = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    install = ("-m", "pip", "install", "--quiet", "--requirement", SOURCE / "requirements.txt")
    subprocess.run([interpreter, *install], check=True)
    return interpreter


async def play(python: Path, url: str, scenario: str) -> Json:
    command = [str(python), str(SOURCE / "play.py"), url, scenario, *TEXTS]
    ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    played: Json = json.loads(ended.stdout)
    assert played["answers"] == ANSWERS
    return played


def creates(heard: list[Heard]) -> list[Json]:
    """The bodies of the requests for a response."""
    return [request.body for request in heard if request.path == "/v1/responses" and request.body]


async def test_a_chain(python: Path) -> None:
    with heard_requests() as heard:
        async with serving_script(*ROWS) as served:
            await play(python, served.url, "chain")
            assert_whole_history(served, system=SYSTEM)
    assert [len(body["input"]) for body in creates(heard)] == [1, 1, 1], "the server knows the rest"
    assert [body["instructions"] for body in creates(heard)] == [SYSTEM] * 3
    assert ["previous_response_id" in body for body in creates(heard)] == [False, True, True]
    assert len(heard) == 3


async def test_a_conversation(python: Path) -> None:
    with heard_requests() as heard:
        async with serving_script(*ROWS) as served:
            played = await play(python, served.url, "conversation")
            assert_whole_history(served, system=SYSTEM)
            items = await StoredState(served).all_items(played["conversation"])
    assert [item["type"] for item in items] == KINDS
    assert [body["conversation"] for body in creates(heard)] == [played["conversation"]] * 3
    assert [(len(body["input"]), body["stream"]) for body in creates(heard)] == [(1, True)] * 3


async def test_a_session(python: Path) -> None:
    with heard_requests() as heard:
        async with serving_script(*ROWS) as served:
            played = await play(python, served.url, "session")
            assert_whole_history(served, system=SYSTEM)
            await StoredState(served).assert_no_conversation(played["conversation"])
    items = played["items"]
    check_items(items)
    assert [item["type"] for item in items] == KINDS
    assert played["last"] == items[-2:]
    assert played["popped"] == items[-1]
    assert played["left"] == items[:-1]
    assert [len(body["input"]) for body in creates(heard)] == [1, 3, 6], "the history is sent each time"
    assert not any("conversation" in body for body in creates(heard))


async def test_a_history_of_the_caller(python: Path) -> None:
    with heard_requests() as heard:
        async with serving_script(*ROWS) as served:
            await play(python, served.url, "history")
            assert_whole_history(served, system=SYSTEM)
    assert [len(body["input"]) for body in creates(heard)] == [1, 3, 6]
