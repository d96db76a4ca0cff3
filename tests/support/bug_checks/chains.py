"""Cases about requests that continue what is stored: each is judged by the prompts that the model got."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from support.bug_checks.check import Checks
from support.bug_checks.prompts import ANSWER, dialogue, prompt, turn
from support.served import text_of

if TYPE_CHECKING:
    from support.case_runner import CaseRun
    from support.exchanges import Exchange

CHECKS = Checks()


async def follow(run: CaseRun, made: Exchange, text: str, **fields: Any) -> Exchange:
    """Continue a response."""
    body = {"model": "local", "input": text, "previous_response_id": made.response["id"], **fields}
    return await run.send("POST", "/v1/responses", body)


@CHECKS("B031")
async def the_previous_response_is_echoed(run: CaseRun) -> None:
    first, second = run.steps
    assert first.response["previous_response_id"] is None
    assert second.response["previous_response_id"] == first.response["id"]
    found = await run.send("GET", f"/v1/responses/{second.response['id']}")
    assert found.response["previous_response_id"] == first.response["id"]
    streamed = await follow(run, first, "b", stream=True)
    assert streamed.events[0]["response"]["previous_response_id"] == first.response["id"]
    assert streamed.response["previous_response_id"] == first.response["id"]


@CHECKS("B077")
async def instructions_are_of_one_turn(run: CaseRun) -> None:
    _, second = run.steps
    asked, named = turn("user", "My dog is Bolt."), turn("user", "Name my dog.")
    history = asked + turn("assistant", ANSWER) + named
    assert run.served.engine.prompts() == [
        prompt(turn("system", "Answer only in French."), asked),
        prompt(turn("system", "Answer only in German."), history),
    ]
    await follow(run, second, "And yours?")
    last = dialogue("My dog is Bolt.", "Name my dog.", "And yours?")
    assert run.served.engine.prompts()[-1:] == [last]


@CHECKS("B078")
async def the_answer_keeps_its_place(run: CaseRun) -> None:
    assert [text_of(made.response) for made in run.steps] == [ANSWER, ANSWER]
    assert run.served.engine.prompts() == [
        prompt(turn("system", "Be brief."), turn("user", "Invent a code word.")),
        dialogue("Invent a code word.", "Repeat the code word you invented."),
    ]


@CHECKS("B082")
async def what_was_asked_is_replayed_too(run: CaseRun) -> None:
    _, second = run.steps
    await follow(run, second, "Once more")
    assert run.served.engine.prompts() == [
        dialogue("Code: 88-ALPHA"),
        dialogue("Code: 88-ALPHA", "Say the code"),
        dialogue("Code: 88-ALPHA", "Say the code", "Once more"),
    ]


@CHECKS("B083")
async def a_chain_grows_by_its_turns_alone(run: CaseRun) -> None:
    assert run.served.engine.prompts() == [dialogue(*"abcd"[:length]) for length in (1, 2, 3, 4)]
    counts = [made.response["usage"]["input_tokens"] for made in run.steps]
    assert counts == [len(tokens) for tokens in run.served.engine.backend.prompts]
    # Every turn says as much as the first one did.
    assert len({after - before for before, after in pairwise(counts)}) == 1


OF_ONE_REQUEST = {
    "instructions": "Be brief.",
    "temperature": 0.25,
    "top_p": 0.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "top_logprobs": 2,
    "max_output_tokens": 100,
    "max_tool_calls": 3,
    "parallel_tool_calls": False,
    "tool_choice": "none",
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": None},
    "metadata": {"trip": "Vis"},
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
}


@CHECKS("B086", without=("tools",))
async def nothing_but_the_dialogue_is_inherited(run: CaseRun) -> None:
    texts = ("hi", "tide Vis?", "tide Brač?")
    assert run.served.engine.prompts() == [dialogue(*texts[:length]) for length in (1, 2, 3)]
    plain = {key: run.steps[0].response[key] for key in (*OF_ONE_REQUEST, "tools")}
    hops = [await run.again(**OF_ONE_REQUEST)]
    assert {key: hops[0].response[key] for key in OF_ONE_REQUEST} == OF_ONE_REQUEST
    for text in texts[1:]:
        hops.append(await follow(run, hops[-1], text))
        assert {key: hops[-1].response[key] for key in plain} == plain
    assert run.served.engine.prompts()[4:] == [dialogue(*texts[:length]) for length in (2, 3)]


LONG_THOUGHT = {"when": "Think hard", "emit": ["<think>", *["hm "] * 40]}


@CHECKS("B087", rows=(LONG_THOUGHT, {"emit": [ANSWER]}))
async def an_incomplete_response_is_continued(run: CaseRun) -> None:
    first, second = run.steps
    assert [item["type"] for item in first.response["output"]] == ["reasoning"]
    empty = await run.again(max_output_tokens=1)
    assert text_of(empty.response) == ""
    for incomplete, following in ((first, second), (empty, await follow(run, empty, "Continue"))):
        assert incomplete.response["status"] == "incomplete"
        assert text_of(following.response) == ANSWER
    # The template shows reasoning on the turns after the newest user message only.
    turns = turn("user", "Think hard"), turn("assistant", ""), turn("user", "Continue")
    assert run.served.engine.prompts()[1::2] == [prompt(*turns)] * 2
    await run.send("POST", "/v1/responses", {"model": "local", "previous_response_id": first.response["id"]})
    thought = turn("assistant", "<think>\n" + ("hm " * 15).strip() + "\n</think>\n\n")
    assert run.served.engine.prompts()[-1:] == [prompt(turn("user", "Think hard"), thought)]


@CHECKS("B095")
async def what_is_not_stored_can_continue_but_not_be_continued(run: CaseRun) -> None:
    _, second, third = run.steps
    assert second.response["store"] is False
    assert run.served.engine.prompts() == [dialogue("a"), dialogue("a", "b")]
    assert second.response["id"] in third.refused("previous_response_id", "previous_response_not_found")
    found = await run.send("GET", f"/v1/responses/{second.response['id']}")
    assert found.error(404)["code"] == "response_not_found"


@CHECKS("B167")
async def an_unknown_response_cannot_be_continued(run: CaseRun) -> None:
    assert "'resp_nope'" in run.only.refused("previous_response_id", "previous_response_not_found")
    known = (await run.again(previous_response_id=None)).response
    await run.again(input="again", previous_response_id=known["id"])
    assert run.served.engine.prompts() == [dialogue("hi"), dialogue("hi", "again")]


@CHECKS("B169")
async def a_conversation_is_named_either_way_and_alone(run: CaseRun) -> None:
    first, both = run.steps
    assert first.response["conversation"] == {"id": "conv_1"}
    assert "'previous_response_id'" in both.refused("conversation")
    by_name = await run.again(input="b", conversation="conv_1")
    assert by_name.response["conversation"] == {"id": "conv_1"}
    await run.again(input="c")
    await run.again(input="c", conversation="conv_2")
    assert run.served.engine.prompts() == [
        *(dialogue(*"abc"[:length]) for length in (1, 2, 3)),
        dialogue("c"),
    ]


@CHECKS("B049", without=("tools",))
async def tokens_are_counted_as_they_are_rendered(run: CaseRun) -> None:
    async def assert_counted(rendered: str, **body: Any) -> Exchange:
        counted = (await run.again(**body)).response
        made = await run.send("POST", "/v1/responses", {"model": "local", "input": "hi", **body})
        assert run.served.engine.prompts()[-1:] == [rendered]
        input_tokens = len(run.served.engine.backend.prompts[-1])
        assert counted == {"object": "response.input_tokens", "input_tokens": input_tokens}
        assert made.response["usage"]["input_tokens"] == input_tokens
        return made

    assert run.served.engine.prompts() == [], "to count is not to generate"
    first = await assert_counted(dialogue("hi"))
    await assert_counted(prompt(turn("system", "Be brief."), turn("user", "hi")), instructions="Be brief.")
    await assert_counted(dialogue("hi", "hi"), previous_response_id=first.response["id"])
    await assert_counted(dialogue("hi"), conversation="conv_1")
    await assert_counted(dialogue("hi", "again"), conversation="conv_1", input="again")
