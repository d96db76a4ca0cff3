"""Second turns that real clients sent, behind the first turns that they go on from.

The model is asked what one request asks that carries the dialogue plainly: roles and texts, calls and
outputs, no ids and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from support.client_requests import read_client_requests
from support.exchanges import Exchange, Step, exchange
from support.plain_items import dialogue, plain
from support.served import serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.published import Json

ANSWER = "Hello from dummy (0 tool outputs)."
"""What the server said to which the clients talked, and ours says too."""

SPOKEN = {
    16: ("My name is Ann", "Name?"),
    20: ("hi", "again"),
    29: ("My name is Ann", "Name?"),
    41: ("My name is Ann", "What is my name?"),
    43: ("hi", "again"),
    67: ("hi", "again"),
    80: ("My name is Ann", "What is my name?"),
    82: ("hi", "again"),
    91: ("hi", "again"),
    111: ("My name is Ann", "Name?"),
    116: ("Say hello", "again"),
}
"""What the user said, by the number of the second turn. The others carry all of it, calls included."""

CALLED = (3, 5, 6, 11, 13, 24, 26, 31, 36, 39, 45, 53, 56, 61, 70, 74, 76, 94, 96, 104, 126, 127, 131)
NOT_PLAYED = {
    18: "its truncation is refused",
    108: "its first turn has to make the call that it answers, which waits for tools",
}

REQUESTS = read_client_requests()


def without_tools(body: Json) -> Json:
    """A request as far as this version takes it."""
    return {key: value for key, value in body.items() if key not in ("tools", "tool_choice")}


@pytest.fixture(scope="module")
def recorded() -> dict[int, tuple[str, str]]:
    """The prompt of each second turn, sent behind its first turn, and that of the plain request."""

    async def play() -> dict[int, tuple[str, str]]:
        second = (*SPOKEN, *CALLED)
        first = {int(of.partition(".")[0]) for number in second for of in REQUESTS[number].ids.values()}
        done: dict[int, Exchange] = {}
        prompts: dict[int, tuple[int, int]] = {}
        async with serving_script(ScriptRow(emit=(ANSWER,))) as served:
            for number in sorted(first.union(second)):
                step = REQUESTS[number].step(done)
                body = without_tools(step.body or {})
                done[number] = await exchange(served, Step(step.method, step.path, body))
                assert text_of(done[number].response) == ANSWER
                if number in second:
                    asked = len(served.engine.backend.prompts)
                    prompts[number] = asked - 1, asked
                    await served.create(**plain_request(number))
            texts = served.engine.prompts()
        return {number: (texts[sent], texts[plainly]) for number, (sent, plainly) in prompts.items()}

    return trio.run(play)


def plain_request(number: int) -> Json:
    body = without_tools(REQUESTS[number].body or {}) | {"previous_response_id": None, "stream": False}
    if number in SPOKEN:
        return body | {"input": dialogue(*SPOKEN[number], answer=ANSWER)}
    return body | {"input": [plain(item) for item in body["input"]]}


@pytest.mark.parametrize(
    "number", [*SPOKEN, *CALLED], ids=lambda number: f"{number}-{REQUESTS[number].client}"
)
def test_a_recorded_second_turn(recorded: Mapping[int, tuple[str, str]], number: int) -> None:
    sent, plainly = recorded[number]
    assert sent == plainly
    items = items_of(REQUESTS[number].body or {})
    types = [item.get("type") for item in items]
    assert sent.count("<tool_call>") == types.count("function_call")
    assert sent.count("<tool_response>") == types.count("function_call_output")
    answers = len(SPOKEN[number]) - 1 if number in SPOKEN else str(items).count(ANSWER)
    assert sent.count(ANSWER) == answers


def items_of(body: Json) -> list[Json]:
    return body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]


def test_no_recorded_second_turn_is_left_out() -> None:
    found = [
        number for number, request in REQUESTS.items() if request.creates and continues(request.body or {})
    ]
    assert found == sorted((*SPOKEN, *CALLED, *NOT_PLAYED))


def continues(body: Json) -> bool:
    roles = {item.get("role") for item in items_of(body)}
    return bool(body.get("previous_response_id")) or not roles <= {"system", "developer", "user"}
