"""The player of the bug cases does what a case says, and what it cannot do is no silent success."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from support.case_runner import Case, Setup, playing, read_cases
from support.served import text_of

if TYPE_CHECKING:
    from support.exchanges import Exchange

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


async def test_a_sequence_breaks_off_where_a_value_is_missing() -> None:
    steps = [create("first"), create(" "), create("$1.id"), create("$2.id"), create("first")]
    async with playing(Case("B000", "kind", "symptom", {"sequence": steps}, "expect"), TWO) as run:
        assert [made.answered for made in run.exchanges] == [True, False, True]
        with pytest.raises(AssertionError, match="breaks off behind 3"):
            len(run.steps)


async def test_a_restart_is_a_new_server() -> None:
    found = {"method": "GET", "path": "/v1/responses/$1.id"}
    created, before, after = await play({"sequence": [create("x"), found, {"restart": "server"}, found]})
    assert before.response == created.response
    assert after.error(404)["code"] == "response_not_found"


async def test_a_request_is_repeated_as_often_as_the_setup_says() -> None:
    setup = Setup(rows=({"times": 2, "emit": ["early"]}, {"emit": ["late"]}), repeat=3)
    made = await play(create("number $i", repeat=5000), setup)
    assert [input_of(each) for each in made] == ["number 0", "number 1", "number 2"]
    assert [text_of(each.response) for each in made] == ["early", "early", "late"]


async def test_fields_are_left_out_of_every_body() -> None:
    request = create("x")
    request["body"] |= {"tools": [{"type": "?"}], "user": "u"}
    made = await play({"sequence": [request, request]}, Setup(without=("tools",)))
    assert [each.step.body for each in made] == [{"model": "local", "input": "x", "user": "u"}] * 2
    assert [each.response["user"] for each in made] == ["u", "u"]


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
        await play(create("x", again=3))


def test_the_cases_are_read() -> None:
    cases = read_cases()
    assert len({case.id for case in cases}) == len(cases)
    assert all(case.symptom and case.expect for case in cases)
