"""The player of the bug cases does what a case says, and what it cannot do is no silent success."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.case_runner import Case, Exchange, Setup, playing, read_cases
from support.served import text_of

CREATE = {"method": "POST", "path": "/v1/responses"}
TWO = Setup(rows=({"when": "first", "emit": ["one"]}, {"emit": ["other"]}))


def create(text: str, **more: Any) -> dict[str, Any]:
    return {**CREATE, "body": {"model": "local", "input": text}, **more}


async def play(request: dict[str, Any], setup: Setup = TWO) -> list[Exchange]:
    async with playing(Case("B000", "kind", "symptom", request, "expect"), setup) as run:
        return list(run.exchanges)


def input_of(made: Exchange) -> Any:
    assert made.step.body is not None
    return made.step.body["input"]


async def test_a_sequence_knows_what_came_before() -> None:
    steps = [create("first"), create("$1.id says $1.output[0].content[0].text"), create("$2.model.")]
    first, second, third = await play({"sequence": steps})
    assert input_of(second) == f"{first.response['id']} says one"
    assert input_of(third) == "scripted."


async def test_a_sequence_that_refers_to_nothing_fails() -> None:
    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        await play({"sequence": [create("first"), create("$1.nothing")]})


async def test_concurrent_requests_are_numbered() -> None:
    made = await play(create("number $i", concurrency=3))
    assert [input_of(each) for each in made] == ["number 0", "number 1", "number 2"]


async def test_parallel_requests_keep_their_order() -> None:
    made = await play({"parallel": [create("first"), create("second")]})
    assert [text_of(each.response) for each in made] == ["one", "other"]


async def test_text_is_repeated_in_bodies_and_raw_bodies() -> None:
    (made,) = await play(create("a $REPEAT('b ', 3)c"))
    assert input_of(made) == "a b b b c"
    (raw,) = await play({**CREATE, "raw_body": "$REPEAT('[', 5)"})
    assert raw.step.content() == b"[[[[["


async def test_the_engine_of_a_case_comes_first_and_its_keys_can_be_changed() -> None:
    engine = {"emit": ["engine"], "delay": 30}
    setup = Setup(rows=({"emit": ["never"]},), engine={"delay": 0})
    (made,) = await play(create("x", engine=engine), setup)
    assert text_of(made.response) == "engine"


async def test_a_client_leaves_when_it_has_read_enough() -> None:
    endless = Setup(rows=({"emit": ["la "], "forever": True, "delay": 0.01},))
    request = create("x", client="disconnect after 5 events")
    request["body"]["stream"] = True
    (made,) = await play(request, endless)
    assert len(made.events) == 5


@pytest.mark.parametrize("client", ["yawns", "timeout of 3 s", "disconnect after events"])
async def test_an_unknown_client_is_an_error(client: str) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="no such client"), flatten_subgroups=True):
        await play(create("x", client=client))


async def test_an_unknown_key_is_an_error() -> None:
    with pytest.RaisesGroup(msgspec.ValidationError, flatten_subgroups=True):
        await play(create("x", repeat=3))


def test_the_cases_are_read() -> None:
    cases = read_cases()
    assert len({case.id for case in cases}) == len(cases)
    assert all(case.symptom and case.expect for case in cases)
