"""Responses that continue others: what the model is shown, whatever has become of their parents."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from support.service_bench import ServiceBench, limits, message, open_run, play

from mlxcel_trio.core.transcript import EMPTY, LINK_OVERHEAD_BYTES
from mlxcel_trio.errors import InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.published import Json
    from support.service_bench import End

TTL = 100


async def hop(bench: ServiceBench, number: int, previous: str | None, **fields: Any) -> Json:
    """One more response of a chain."""
    return await bench.answer(
        f"answer {number}", input=f"question {number}", previous_response_id=previous, **fields
    )


def turns(*numbers: int) -> list[str]:
    """The prompt behind these hops, the last of which has no answer yet."""
    texts = [
        text for number in numbers for text in (f"user: question {number}", f"assistant: answer {number}")
    ]
    return texts[:-1]


async def assert_no_previous(bench: ServiceBench, previous: str, owner: str | None = None) -> None:
    """Neither a response nor a count can continue it."""
    for ask in (bench.prepare, bench.count):
        with pytest.raises(InvalidRequestError) as refused:
            await ask(owner, previous_response_id=previous)
        assert (refused.value.code, refused.value.param) == (
            "previous_response_not_found",
            "previous_response_id",
        )


async def test_a_chain_replays_every_hop_once(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    previous = None
    for number in range(30):
        response = await hop(bench, number, previous)
        assert bench.prompt() == turns(*range(number + 1))
        assert response["previous_response_id"] == previous
        assert [item["content"][0]["text"] for item in response["output"]] == [f"answer {number}"]
        previous = response["id"]


async def test_history_is_held_and_counted_once(mock_clock: trio.testing.MockClock) -> None:
    """Each hop costs the same, however long the chain is."""
    bench = ServiceBench()
    previous, sizes, histories = None, [0], [EMPTY]
    for _ in range(20):
        previous = (await hop(bench, 1, previous))["id"]
        sizes.append(bench.stored.retained_bytes)
        histories.append(bench.stored.history(None, previous))
        assert histories[-1].parent is histories[-2]
    costs = [after - before for before, after in pairwise(sizes)]
    # Ids get longer as they are counted; the first response has no previous id.
    assert max(costs) - min(costs) < LINK_OVERHEAD_BYTES


@pytest.mark.parametrize("removed", [0, 1, 2])
@pytest.mark.parametrize("mid_turn", [False, True])
async def test_a_parent_may_be_deleted_at_any_hop(
    mock_clock: trio.testing.MockClock, removed: int, mid_turn: bool
) -> None:
    bench = ServiceBench()
    ids: list[str] = []
    for number in range(3):
        ids.append((await hop(bench, number, ids[-1] if ids else None))["id"])
    if mid_turn:
        run = await bench.prepare(input="question 3", previous_response_id=ids[-1])
        async with open_run(run):
            sequence = await bench.engine.next_sequence()
            bench.stored.delete(None, ids[removed])
            play(sequence, "answer 3")
        assert bench.prompt() == turns(0, 1, 2, 3)
        await hop(bench, 4, run.response_id)
        assert bench.prompt() == turns(0, 1, 2, 3, 4)
    else:
        child = (await hop(bench, 3, ids[-1]))["id"]
        bench.stored.delete(None, ids[removed])
        await hop(bench, 4, child)
        assert bench.prompt() == turns(0, 1, 2, 3, 4)
    await assert_no_previous(bench, ids[removed])


async def test_parents_may_expire(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(responses=limits(ttl_seconds=TTL))
    previous = None
    for number in range(6):
        child = (await hop(bench, number, previous))["id"]
        assert bench.prompt() == turns(*range(number + 1))
        mock_clock.jump(1)
        if previous is not None:
            await assert_no_previous(bench, previous)
        mock_clock.jump(TTL - 2)
        previous = child
    mock_clock.jump(1)
    assert previous is not None
    await assert_no_previous(bench, previous)


async def test_parents_may_be_evicted(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(responses=limits(max_entries=1))
    ids: list[str] = []
    for number in range(6):
        ids.append((await hop(bench, number, ids[-1] if ids else None))["id"])
        assert bench.prompt() == turns(*range(number + 1))
    for gone in ids[:-1]:
        await assert_no_previous(bench, gone)


async def test_a_parent_may_expire_in_mid_turn(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(responses=limits(ttl_seconds=TTL))
    first = await hop(bench, 0, None)
    run = await bench.prepare(input="question 1", previous_response_id=first["id"])
    async with open_run(run):
        sequence = await bench.engine.next_sequence()
        mock_clock.jump(10 * TTL)
        await assert_no_previous(bench, first["id"])
        play(sequence, "answer 1")
    await hop(bench, 2, run.response_id)
    assert bench.prompt() == turns(0, 1, 2)


async def test_two_children_of_one_parent(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    parent = (await hop(bench, 0, None))["id"]
    runs = [await bench.prepare(input=f"question {n}", previous_response_id=parent) for n in (1, 2)]
    async with open_run(runs[0]), open_run(runs[1]):
        for _ in runs:
            sequence = await bench.engine.next_sequence()
            number = int(bench.prompt(sequence.row.row_id)[-1][-1])
            assert bench.prompt(sequence.row.row_id) == turns(0, number)
            play(sequence, f"answer {number}")
    for child, run in enumerate(runs, start=1):
        await hop(bench, 3, run.response_id)
        assert bench.prompt() == turns(0, child, 3)
    await hop(bench, 4, parent)
    assert bench.prompt() == turns(0, 4)


@pytest.mark.parametrize(("end", "status"), [("length", "incomplete"), ("fail", "failed")])
async def test_every_terminal_response_chains_with_its_output_as_it_stands(
    mock_clock: trio.testing.MockClock, end: End, status: str
) -> None:
    bench = ServiceBench()
    first = await bench.answer("part", end=end)
    assert first["status"] == status
    await bench.answer("more", input="go on", previous_response_id=first["id"])
    assert bench.prompt() == ["user: hi", "assistant: part", "user: go on"]


async def test_a_cancelled_response_chains(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    run = await bench.prepare()
    async with open_run(run):
        (await bench.engine.next_sequence()).say("part")
        await trio.testing.wait_all_tasks_blocked()
        bench.cancel(run.response_id)
    await bench.answer("more", input="go on", previous_response_id=run.response_id)
    assert bench.prompt() == ["user: hi", "assistant: part", "user: go on"]


async def test_nothing_but_the_dialogue_is_inherited(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    asked: Json = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 7,
        "seed": 3,
        "max_output_tokens": 9,
        "max_tool_calls": 2,
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "top_logprobs": 2,
        "presence_penalty": 0.5,
        "stop": "never",
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "low"},
        "chat_template_kwargs": {"mood": "calm"},
        "metadata": {"key": "value"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
    }
    first = await bench.answer("Hello", input="hi", **asked)
    assert len(bench.prompt()) == 3  # a template variable, the instructions, the question
    second = await bench.answer("never", "?", input="and now", previous_response_id=first["id"])
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: and now"]
    plain = await bench.answer("never", "?", input="and now")
    different = {key for key in plain if plain[key] != second[key]}
    assert different == {"id", "output", "previous_response_id", "usage"}
    rows = [sequence.row for sequence in bench.engine.sequences[1:]]
    assert rows[0].sampling == rows[1].sampling
    assert rows[0].adjustments == rows[1].adjustments
    assert (rows[0].top_logprobs, rows[1].top_logprobs) == (None, None)
    assert second["output"][0]["content"][0]["text"] == "never?"


async def test_instructions_lead_the_hop_that_brings_them(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    items = [message("Rule one.", role="developer"), message("hi")]
    first = await bench.answer("Hello", input=items, instructions="Be brief.")
    assert bench.prompt() == ["system: Be brief.\n\nRule one.", "user: hi"]
    await bench.answer("Bye", input="bye", previous_response_id=first["id"], instructions="Be long.")
    # Messages of the system are items of the dialogue, instructions are not.
    assert bench.prompt() == [
        "system: Be long.\n\nRule one.",
        "user: hi",
        "assistant: Hello",
        "user: bye",
    ]


@pytest.mark.parametrize("replayed", ["in full", "as references"])
async def test_what_a_client_replays_is_not_repeated(
    mock_clock: trio.testing.MockClock, replayed: str
) -> None:
    """Clients send a previous id and the previous output too."""
    bench = ServiceBench()
    first = await bench.answer("<think>", "hm", "</think>", "Hello", input=[message("hi", id="msg_mine")])
    replay = [message("hi", id="msg_mine"), *first["output"]]
    if replayed == "as references":
        replay = [{"type": "item_reference", "id": item["id"]} for item in replay]
    second = await bench.answer("Bye", input=[*replay, message("bye")], previous_response_id=first["id"])
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: bye"]
    own = bench.stored.input_items(None, second["id"], {})
    assert len(own.data) == 1


async def test_a_hop_needs_no_input(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    first = await bench.answer("Hello")
    await bench.answer("more", input=None, previous_response_id=first["id"])
    assert bench.prompt() == ["user: hi", "assistant: Hello"]


async def test_an_output_of_a_tool_goes_with_a_call_of_the_history(
    mock_clock: trio.testing.MockClock,
) -> None:
    bench = ServiceBench()
    call = {"type": "function_call", "call_id": "call_9", "name": "clock", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_9", "output": "noon"}
    first = await bench.answer("let me see", input=[message("time?"), call])
    await bench.answer("It is noon", input=[output], previous_response_id=first["id"])
    assert bench.prompt()[-1] == "tool: noon"
    second_call = bench.prepare(input=[call], previous_response_id=first["id"])
    with pytest.raises(InvalidRequestError, match="call_9"):
        await second_call
    with pytest.raises(InvalidRequestError, match="call_9"):
        await bench.prepare(input=[output])


def delete(bench: ServiceBench, clock: trio.testing.MockClock, response_id: str) -> None:
    bench.stored.delete(None, response_id)


def outlive(bench: ServiceBench, clock: trio.testing.MockClock, response_id: str) -> None:
    clock.jump(3600)


@pytest.mark.parametrize("remove", [delete, outlive])
async def test_a_response_that_is_gone_cannot_be_continued(
    mock_clock: trio.testing.MockClock,
    remove: Callable[[ServiceBench, trio.testing.MockClock, str], None],
) -> None:
    bench = ServiceBench()
    response = await bench.answer("Hello")
    remove(bench, mock_clock, response["id"])
    await assert_no_previous(bench, response["id"])


@pytest.mark.parametrize("previous", ["resp_unknown", "", "resp_1\n", "msg_1", "x" * 10_000])
async def test_an_unknown_response_cannot_be_continued(
    mock_clock: trio.testing.MockClock, previous: str
) -> None:
    bench = ServiceBench()
    await bench.answer("Hello")
    await assert_no_previous(bench, previous)


async def test_a_response_that_was_not_stored_cannot_be_continued(
    mock_clock: trio.testing.MockClock,
) -> None:
    bench = ServiceBench()
    await assert_no_previous(bench, (await bench.answer("Hello", store=False))["id"])


async def test_a_child_that_is_not_stored_sees_its_history(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    first = await hop(bench, 0, None)
    await hop(bench, 1, first["id"], store=False)
    assert bench.prompt() == turns(0, 1)
    await hop(bench, 2, first["id"])
    assert bench.prompt() == turns(0, 2)


async def test_a_chain_that_grows_over_the_window(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    window = bench.engine.model.context_window
    many = [message(str(number), role="user" if number % 2 else "assistant") for number in range(window - 1)]
    first = await bench.answer("a", input=many[:-1])
    before = bench.stored.retained_bytes
    with pytest.raises(InvalidRequestError) as refused:
        await bench.prepare(input=[*many[-1:], *many[:4]], previous_response_id=first["id"])
    assert refused.value.code == "context_length_exceeded"
    assert bench.stored.retained_bytes == before
    bench.assert_idle()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(-1, 30)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("jump"), st.sampled_from([1, TTL // 3, TTL])),
    ),
    min_size=4,
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(actions=ACTIONS, max_entries=st.integers(1, 6))
def test_any_tree_of_responses(actions: list[tuple[str, int]], max_entries: int) -> None:
    """Whoever can be retrieved can be continued, with the whole of its own past; nobody else can."""
    clock = trio.testing.MockClock()

    async def grow() -> None:
        bench = ServiceBench(responses=limits(max_entries=max_entries, ttl_seconds=TTL))
        pasts: dict[str, list[int]] = {}
        for action, argument in actions:
            ids = list(pasts)
            chosen = ids[argument % len(ids)] if ids and argument >= 0 else None
            if action == "jump":
                clock.jump(argument)
            elif action == "delete":
                if chosen is not None and retrievable(bench, chosen):
                    bench.stored.delete(None, chosen)
            elif chosen is None or retrievable(bench, chosen):
                past = [*pasts.get(chosen or "", ()), len(ids)]
                child = await hop(bench, len(ids), chosen)
                assert bench.prompt() == turns(*past)
                pasts[child["id"]] = past
            else:
                await assert_no_previous(bench, chosen)
            assert len(bench.stored) <= max_entries
        bench.assert_idle()

    trio.run(grow, clock=clock)


def retrievable(bench: ServiceBench, response_id: str) -> bool:
    """Whether the response is stored."""
    try:
        bench.retrieve(response_id)
    except NotFoundError:
        return False
    return True
