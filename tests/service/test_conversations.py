"""Conversations: what turns and clients append to them, and how long they last."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from support.service_bench import ServiceBench, collect, limits, listed, message, open_run, play, read, texts

from mlxcel_trio.errors import EngineFailureError, InvalidRequestError, NotFoundError
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.conversations import CreateItems
from mlxcel_trio.service.pipeline import ResponseRun
from mlxcel_trio.testing.fake_engine import FakeSequence

if TYPE_CHECKING:
    from support.published import Json


TTL = 100

Use = Callable[[ServiceBench, str, str | None], object]

# Every way to use a conversation by its id.
USES: dict[str, Use] = {
    "retrieve": lambda bench, name, owner: bench.conversations.retrieve(owner, name),
    "update": lambda bench, name, owner: bench.update_conversation(name, owner, metadata={}),
    "delete": lambda bench, name, owner: bench.conversations.delete(owner, name),
    "create items": lambda bench, name, owner: bench.add_items(name, message("hi"), owner=owner),
    "list items": lambda bench, name, owner: bench.conversations.list_items(owner, name, {}),
    "retrieve an item": lambda bench, name, owner: bench.conversations.retrieve_item(owner, name, "msg_mine"),
    "delete an item": lambda bench, name, owner: bench.conversations.delete_item(owner, name, "msg_mine"),
}


def assert_unknown(bench: ServiceBench, conversation_id: str, owner: str | None = None) -> None:
    """No use of it finds anything."""
    for use in USES.values():
        with pytest.raises(NotFoundError) as caught:
            use(bench, conversation_id, owner)
        assert caught.value.code == "conversation_not_found"


async def turn(bench: ServiceBench, conversation: str, question: str, answer: str, **fields: Any) -> Json:
    """A question and its answer."""
    return await bench.answer(answer, input=question, conversation=conversation, **fields)


# By the client


async def test_creating_one() -> None:
    bench = ServiceBench()
    created = bench.create_conversation(metadata={"topic": "ships"})
    assert created == {
        "id": "conv_1",
        "object": "conversation",
        "created_at": 7,
        "metadata": {"topic": "ships"},
    }
    assert read(bench.conversations.retrieve(None, "conv_1")) == created
    assert bench.items("conv_1") == []
    assert bench.create_conversation()["metadata"] == {}


async def test_creating_one_with_items() -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("Be brief.", role="system"), message("hi", id="msg_mine")])
    assert bench.texts("conv_1") == ["system: Be brief.", "user: hi"]
    assert bench.items("conv_1")[1] == {
        "id": "msg_mine",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }


async def test_adding_items_lists_the_new_ones_in_order() -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("zero")])
    added = bench.add_items("conv_1", message("one"), message("two", id="msg_two"))
    assert [item["content"][0]["text"] for item in added["data"]] == ["one", "two"]
    assert (added["object"], added["has_more"], added["last_id"]) == ("list", False, "msg_two")
    assert added["data"] == bench.items("conv_1")[1:]


async def test_twenty_items_at_once_and_no_more() -> None:
    bench = ServiceBench()
    items = [message(str(number)) for number in range(21)]
    bench.create_conversation(items=items[:20])
    assert len(bench.add_items("conv_1", *items[:20])["data"]) == 20
    assert len(bench.items("conv_1")) == 40
    with pytest.raises(InvalidRequestError) as refused:
        bench.add_items("conv_1", *items)
    assert refused.value.param == "items"
    with pytest.raises(InvalidRequestError) as refused:
        bench.create_conversation(items=items)
    assert refused.value.param == "items"
    assert (len(bench.items("conv_1")), len(bench.conversations)) == (40, 1)


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"role": "user"}], "items[0].content"),
        ([message("hi"), {"type": "web_search_call", "id": "ws_1"}], "items[1].type"),
        ([{"type": "function_call_output", "call_id": "call_1", "output": ""}], "items[0].call_id"),
        ([{"type": "item_reference", "id": "msg_none"}], "items[0].id"),
    ],
)
async def test_bad_items_change_nothing(items: list[Json], param: str) -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("hi")])
    before = bench.items("conv_1")
    with pytest.raises(InvalidRequestError) as refused:
        bench.create_conversation(items=items)
    assert refused.value.param == param
    with pytest.raises(InvalidRequestError) as refused:
        bench.add_items("conv_1", *items)
    assert refused.value.param == param
    assert (bench.items("conv_1"), len(bench.conversations)) == (before, 1)


async def test_an_output_goes_with_a_call_that_is_there(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    call = {"type": "function_call", "call_id": "call_9", "name": "clock", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_9", "output": "noon"}
    bench.create_conversation(items=[message("time?"), call])
    with pytest.raises(InvalidRequestError, match="call_9"):
        bench.add_items("conv_1", call)
    bench.add_items("conv_1", output)
    with pytest.raises(InvalidRequestError, match="call_9"):
        await bench.prepare(input=[output], conversation="conv_1")
    await turn(bench, "conv_1", "so?", "It is noon.")
    assert bench.prompt() == ["user: time?", "assistant: ", "tool: noon", "user: so?"]


async def test_adding_items_needs_items() -> None:
    bench = ServiceBench()
    bench.create_conversation()
    with pytest.raises(InvalidRequestError) as refused:
        bench.conversations.create_items(None, "conv_1", CreateItems())
    assert refused.value.param == "items"


async def test_new_metadata_replaces_the_old() -> None:
    bench = ServiceBench()
    created = bench.create_conversation(metadata={"a": "1", "b": "2"}, items=[message("hi")])
    updated = bench.update_conversation("conv_1", metadata={"c": "3"})
    assert updated == created | {"metadata": {"c": "3"}}
    assert read(bench.conversations.retrieve(None, "conv_1")) == updated
    assert bench.texts("conv_1") == ["user: hi"]
    assert bench.update_conversation("conv_1", metadata={})["metadata"] == {}


@pytest.mark.parametrize(
    "metadata", [None, {"k" * 65: ""}, {"k": "v" * 513}, dict.fromkeys("abcdefghijklmnopq", "")]
)
async def test_bad_metadata_changes_nothing(metadata: dict[str, str] | None) -> None:
    bench = ServiceBench()
    created = bench.create_conversation(metadata={"a": "1"})
    with pytest.raises(InvalidRequestError) as refused:
        bench.update_conversation("conv_1", metadata=metadata)
    assert refused.value.param == "metadata"
    assert read(bench.conversations.retrieve(None, "conv_1")) == created
    if metadata is not None:
        with pytest.raises(InvalidRequestError):
            bench.create_conversation(metadata=metadata)


async def test_deleting_one() -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("hi", id="msg_mine")])
    deleted = read(encode(bench.conversations.delete(None, "conv_1")))
    assert deleted == {"id": "conv_1", "object": "conversation.deleted", "deleted": True}
    assert_unknown(bench, "conv_1")
    assert bench.conversations.retained_bytes == 0


async def test_one_item_by_its_id() -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("hi", id="msg_mine"), message("ho", id="msg_other")])
    assert read(bench.conversations.retrieve_item(None, "conv_1", "msg_other")) == bench.items("conv_1")[1]
    conversation = bench.conversations.delete_item(None, "conv_1", "msg_other")
    assert conversation == bench.conversations.retrieve(None, "conv_1")
    assert bench.texts("conv_1") == ["user: hi"]
    for use in (bench.conversations.retrieve_item, bench.conversations.delete_item):
        with pytest.raises(NotFoundError) as caught:
            use(None, "conv_1", "msg_other")
        assert caught.value.code == "item_not_found"


async def test_items_are_listed_from_the_newest() -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message(str(number), id=f"msg_{number}") for number in range(20)])
    bench.add_items("conv_1", message("20", id="msg_20"))
    page = listed(bench.conversations.list_items(None, "conv_1", {}))
    assert [item["id"] for item in page["data"]] == [f"msg_{number}" for number in range(20, 0, -1)]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("msg_20", "msg_1", True)
    rest = listed(bench.conversations.list_items(None, "conv_1", {"after": "msg_1"}))
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (["msg_0"], False)


@pytest.mark.parametrize("conversation_id", ["conv_9", "", "talk", "x" * 5000])
async def test_an_unknown_id_is_not_found(conversation_id: str) -> None:
    assert_unknown(ServiceBench(), conversation_id)


async def test_items_of_elsewhere_can_be_referred_to() -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("hi", id="msg_mine")])
    bench.create_conversation(items=[{"type": "item_reference", "id": "msg_mine"}])
    bench.conversations.delete(None, "conv_1")
    assert bench.texts("conv_2") == ["user: hi"]


# By turns


async def test_an_unknown_id_starts_an_empty_transcript(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    first = await turn(bench, "talk", "hi", "Hello")
    assert bench.prompt() == ["user: hi"]
    assert first["conversation"] == {"id": "talk"}
    conversation = read(bench.conversations.retrieve(None, "talk"))
    assert conversation == {"id": "talk", "object": "conversation", "created_at": 7, "metadata": {}}
    second = await bench.answer("Bye", input="bye", conversation={"id": "talk"})
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: bye"]
    assert bench.texts("talk") == ["user: hi", "assistant: Hello", "user: bye", "assistant: Bye"]
    assert [item["id"] for item in bench.items("talk")[1::2]] == [
        response["output"][0]["id"] for response in (first, second)
    ]


async def test_a_conversation_is_not_there_before_its_first_turn_ends(
    mock_clock: trio.testing.MockClock,
) -> None:
    bench = ServiceBench()
    run = await bench.prepare(conversation="talk")
    async with open_run(run):
        sequence = await bench.engine.next_sequence()
        assert_unknown(bench, "talk")
        play(sequence, "Hello")
    assert bench.texts("talk") == ["user: hi", "assistant: Hello"]


async def test_a_turn_goes_on_from_what_the_client_appended(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("Be brief.", role="developer"), message("hi")])
    bench.add_items("conv_1", message("Hello", role="assistant"))
    await turn(bench, "conv_1", "bye", "Bye", instructions="In verse.")
    assert bench.prompt() == ["system: In verse.\n\nBe brief.", "user: hi", "assistant: Hello", "user: bye"]
    assert bench.texts("conv_1")[3:] == ["user: bye", "assistant: Bye"]  # no instructions


async def test_a_deleted_item_is_not_rendered(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    first = await turn(bench, "talk", "hi", "Hello")
    bench.conversations.delete_item(None, "talk", first["output"][0]["id"])
    await turn(bench, "talk", "bye", "Bye")
    assert bench.prompt() == ["user: hi\n\nbye"]
    assert bench.retrieve(first["id"]) == first


async def test_a_turn_needs_no_input_of_its_own(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("hi")])
    await bench.answer("Hello", input=None, conversation="conv_1")
    assert bench.prompt() == ["user: hi"]
    assert bench.texts("conv_1") == ["user: hi", "assistant: Hello"]
    with pytest.raises(InvalidRequestError, match="empty"):
        await bench.prepare(input=None, conversation="talk")


async def test_all_output_is_appended_and_log_probabilities_are_not(
    mock_clock: trio.testing.MockClock,
) -> None:
    bench = ServiceBench()
    chunks = ("<think>", "hm", "</think>", "Hel", "lo")
    response = await bench.answer(*chunks, conversation="talk", top_logprobs=2)
    reasoning, answer = bench.items("talk")[1:]
    assert response["output"][1]["content"][0]["logprobs"]
    response["output"][1]["content"][0]["logprobs"] = []
    assert [reasoning, answer] == response["output"]


async def test_what_a_turn_replays_is_not_repeated(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    first = await turn(bench, "talk", "hi", "Hello")
    replay = [*bench.items("talk"), {"type": "item_reference", "id": first["output"][0]["id"]}]
    await bench.answer("Bye", input=[*replay, message("bye")], conversation="talk")
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: bye"]
    assert bench.texts("talk") == ["user: hi", "assistant: Hello", "user: bye", "assistant: Bye"]


@pytest.mark.parametrize(
    ("how", "appended"), [("stop", True), ("length", True), ("fail", False), ("cancel", False)]
)
async def test_which_turns_are_appended(
    mock_clock: trio.testing.MockClock, how: Literal["stop", "length", "fail", "cancel"], appended: bool
) -> None:
    bench = ServiceBench()
    bench.create_conversation(items=[message("before")])
    run = await bench.prepare(input="hi", conversation="conv_1")
    async with open_run(run) as results:
        await bench.end(run, await bench.engine.next_sequence(), "part", how=how)
    assert texts(results[0])[0][2] == "part"
    assert bench.texts("conv_1") == ["user: before", *(["user: hi", "assistant: part"] if appended else [])]


async def test_a_turn_that_says_nothing_is_appended(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    await bench.answer(conversation="talk")
    assert bench.texts("talk") == ["user: hi", "assistant: "]


async def test_a_failed_json_turn_is_not_appended(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    await turn(bench, "talk", "hi", "Hello", stream=False)
    run = await bench.prepare(stream=False, conversation="talk")
    with pytest.RaisesGroup(pytest.RaisesExc(EngineFailureError)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.run)
            play(await bench.engine.next_sequence(), "part", end="fail")
    assert bench.texts("talk") == ["user: hi", "assistant: Hello"]


async def test_store_false_sees_the_transcript_and_appends_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    bench = ServiceBench()
    await turn(bench, "talk", "hi", "Hello")
    response = await turn(bench, "talk", "bye", "Bye", store=False)
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: bye"]
    assert response["conversation"] == {"id": "talk"}
    assert bench.texts("talk") == ["user: hi", "assistant: Hello"]
    await turn(bench, "new", "hi", "Hello", store=False)
    assert_unknown(bench, "new")


async def test_two_turns_at_once(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    await turn(bench, "talk", "hi", "Hello")
    runs = [await bench.prepare(input=text, conversation="talk") for text in ("first", "second")]
    async with open_run(runs[1]):
        slow = await bench.engine.next_sequence()
        async with open_run(runs[0]):
            play(await bench.engine.next_sequence(), "one")
        bench.add_items("talk", message("aside"))
        play(slow, "two")
    for index, text in ((-1, "first"), (-2, "second")):
        assert bench.prompt(index) == ["user: hi", "assistant: Hello", f"user: {text}"]
    assert bench.texts("talk")[2:] == [
        "user: first",
        "assistant: one",
        "user: aside",
        "user: second",
        "assistant: two",
    ]


async def test_two_first_turns_at_once(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    runs = [await bench.prepare(input=text, conversation="talk") for text in ("first", "second")]
    async with open_run(runs[0]), open_run(runs[1]):
        for _ in runs:
            play(await bench.engine.next_sequence(), "answer")
    assert sorted(bench.texts("talk")[::2]) == ["user: first", "user: second"]
    assert bench.texts("talk")[1::2] == ["assistant: answer"] * 2


async def test_one_that_is_deleted_in_mid_turn_stays_gone(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    first = await turn(bench, "talk", "hi", "Hello")
    run = await bench.prepare(input="bye", conversation="talk")
    async with open_run(run):
        sequence = await bench.engine.next_sequence()
        bench.conversations.delete(None, "talk")
        play(sequence, "Bye")
    assert_unknown(bench, "talk")
    # Its responses are not harmed, and continue with what it held.
    assert bench.retrieve(first["id"]) == first
    await bench.answer("So", input="so", previous_response_id=run.response_id)
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: bye", "assistant: Bye", "user: so"]
    # The next turn begins anew.
    await turn(bench, "talk", "hi again", "Hello")
    assert bench.prompt() == ["user: hi again"]


async def test_a_response_of_a_conversation_can_be_continued_outside(
    mock_clock: trio.testing.MockClock,
) -> None:
    bench = ServiceBench()
    first = await turn(bench, "talk", "hi", "Hello")
    await turn(bench, "talk", "bye", "Bye")
    await bench.answer("Aside", input="aside", previous_response_id=first["id"])
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: aside"]
    assert len(bench.items("talk")) == 4


class OpenTurn(Struct):
    """A turn under way; its client leaves when ``client`` is cancelled."""

    question: str
    run: ResponseRun
    sequence: FakeSequence
    client: trio.CancelScope


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["start", "add"]), st.just(0)),
        st.tuples(st.sampled_from(["stop", "length", "fail", "cancel", "leave"]), st.integers(0, 5)),
    ),
    min_size=3,
    max_size=25,
)


@settings(deadline=None, max_examples=50)
@given(steps=STEPS)
def test_turns_in_any_order(steps: list[tuple[str, int]]) -> None:
    """Each turn sees the conversation as of its start; what is appended is whole, in the order of ends."""
    trio.run(take_turns, steps, clock=trio.testing.MockClock())


async def take_turns(steps: list[tuple[str, int]]) -> None:
    """Play the steps against a list of what the conversation has to hold."""
    bench = ServiceBench(slots=len(steps))
    bench.create_conversation()
    expected: list[str] = []
    under_way: list[OpenTurn] = []
    async with trio.open_nursery() as nursery:
        for number, (step, choice) in enumerate(steps):
            if step == "start":
                opened = await start_turn(bench, nursery, f"question {number}")
                assert bench.prompt() == merged([*expected, opened.question])
                under_way.append(opened)
            elif step == "add":
                bench.add_items("conv_1", message(f"aside {number}", role="assistant"))
                expected.append(f"assistant: aside {number}")
            elif under_way:
                opened = under_way.pop(choice % len(under_way))
                await end_turn(bench, opened, step)
                if step in ("stop", "length"):
                    expected += [opened.question, "assistant: answer"]
            assert bench.texts("conv_1") == expected
        nursery.cancel_scope.cancel()
    bench.assert_idle()


async def start_turn(bench: ServiceBench, nursery: trio.Nursery, question: str) -> OpenTurn:
    """A turn whose prompt the engine has."""
    run = await bench.prepare(input=question, conversation="conv_1")
    client = trio.CancelScope()

    async def follow() -> None:
        with client:
            await collect(run)

    nursery.start_soon(follow)
    return OpenTurn(f"user: {question}", run, await bench.engine.next_sequence(), client)


async def end_turn(bench: ServiceBench, opened: OpenTurn, how: str) -> None:
    """Let a turn end that way after it has said something."""
    match how:
        case "stop" | "length" | "fail" | "cancel":
            await bench.end(opened.run, opened.sequence, "answer", how=how)
        case _:
            play(opened.sequence, "answer", end="nothing")
            await trio.testing.wait_all_tasks_blocked()
            opened.client.cancel()
    await trio.testing.wait_all_tasks_blocked()


def merged(texts: list[str]) -> list[str]:
    """The turns of a prompt: neighbouring messages of one role are one turn."""
    turns: list[str] = []
    for text in texts:
        role, _, said = text.partition(": ")
        if turns and turns[-1].startswith(f"{role}: "):
            turns[-1] += f"\n\n{said}"
        else:
            turns.append(text)
    return turns


# How long they last


async def test_age_counts_from_the_last_append(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(ttl_seconds=TTL))
    bench.create_conversation()
    mock_clock.jump(TTL - 1)
    bench.add_items("conv_1", message("hi", id="msg_mine"))
    mock_clock.jump(TTL - 1)
    await turn(bench, "conv_1", "bye", "Bye")
    mock_clock.jump(TTL - 1)
    assert len(bench.items("conv_1")) == 3
    mock_clock.jump(1)
    assert_unknown(bench, "conv_1")


async def test_age_does_not_count_from_anything_else(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(ttl_seconds=TTL))
    bench.create_conversation(items=[message("one", id="msg_mine"), message("two", id="msg_other")])
    mock_clock.jump(TTL - 1)
    bench.conversations.retrieve(None, "conv_1")
    bench.update_conversation("conv_1", metadata={"a": "b"})
    bench.conversations.list_items(None, "conv_1", {})
    bench.conversations.retrieve_item(None, "conv_1", "msg_mine")
    bench.conversations.delete_item(None, "conv_1", "msg_mine")
    bench.add_items("conv_1")
    bench.add_items("conv_1", {"type": "item_reference", "id": "msg_other"})  # is there already
    await turn(bench, "conv_1", "hi", "Hello", store=False)
    run = await bench.prepare(input="hi", conversation="conv_1")
    async with open_run(run):
        play(await bench.engine.next_sequence(), "part", end="fail")
    mock_clock.jump(1)
    assert_unknown(bench, "conv_1")
    assert bench.conversations.retained_bytes == 0


async def test_one_that_grows_too_old_in_mid_turn_stays_gone(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(ttl_seconds=TTL))
    await turn(bench, "talk", "hi", "Hello")
    run = await bench.prepare(input="bye", conversation="talk")
    async with open_run(run):
        sequence = await bench.engine.next_sequence()
        mock_clock.jump(TTL)
        play(sequence, "Bye")
    assert bench.prompt() == ["user: hi", "assistant: Hello", "user: bye"]
    assert_unknown(bench, "talk")


async def test_a_first_turn_may_take_longer_than_the_ttl(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(ttl_seconds=TTL))
    run = await bench.prepare(conversation="talk")
    async with open_run(run):
        sequence = await bench.engine.next_sequence()
        mock_clock.jump(3 * TTL)
        play(sequence, "Hello")
    mock_clock.jump(TTL - 1)
    assert bench.texts("talk") == ["user: hi", "assistant: Hello"]


async def test_no_ttl_is_for_ever(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(ttl_seconds=0))
    await turn(bench, "talk", "hi", "Hello")
    mock_clock.jump(10**9)
    assert len(bench.items("talk")) == 2


async def test_no_bytes_is_a_store_that_keeps_nothing(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(max_bytes=0))
    assert bench.create_conversation()["id"] == "conv_1"
    assert_unknown(bench, "conv_1")
    for _ in range(2):
        response = await turn(bench, "talk", "hi", "Hello")
        assert bench.prompt() == ["user: hi"]
        assert response["conversation"] == {"id": "talk"}
        assert_unknown(bench, "talk")


async def test_no_entries_is_no_store(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(max_entries=0))
    with pytest.raises(InvalidRequestError) as refused:
        bench.create_conversation()
    assert refused.value.code == "store_disabled"
    for use in USES.values():
        with pytest.raises(InvalidRequestError) as refused:
            use(bench, "conv_1", None)
        assert refused.value.code == "store_disabled"
    for ask in (bench.prepare, bench.count):
        with pytest.raises(InvalidRequestError) as refused:
            await ask(conversation="talk")
        assert (refused.value.code, refused.value.param) == ("store_disabled", "conversation")
    bench.assert_idle()
    # Responses do not need it, nor do references to their items.
    first = await bench.answer("Hello")
    await bench.answer("Bye", input=[{"type": "item_reference", "id": first["output"][0]["id"]}])
    assert bench.prompt() == ["assistant: Hello"]


async def test_the_least_recently_used_goes_first(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(max_entries=2))
    for name in ("one", "two"):
        await turn(bench, name, "hi", "Hello")
    await turn(bench, "one", "bye", "Bye")
    await turn(bench, "three", "hi", "Hello")
    assert_unknown(bench, "two")
    assert (len(bench.items("one")), len(bench.items("three"))) == (4, 2)


async def test_one_that_grows_over_the_budget_goes_alone(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench(conversations=limits(max_bytes=20_000))
    await turn(bench, "small", "hi", "Hello")
    await turn(bench, "large", "hi", "Hello")
    await turn(bench, "large", "more", "word " * 4000)
    assert_unknown(bench, "large")
    assert bench.texts("small") == ["user: hi", "assistant: Hello"]
    assert bench.conversations.retained_bytes < 20_000


# Whose they are


@pytest.mark.parametrize(("owner", "other"), [("one", "two"), ("one", None), (None, "one")])
async def test_another_key_sees_nothing(
    mock_clock: trio.testing.MockClock, owner: str | None, other: str | None
) -> None:
    bench = ServiceBench()
    bench.create_conversation(owner, items=[message("hi", id="msg_mine")])
    await turn(bench, "conv_1", "bye", "Bye", owner=owner)
    assert bench.prompt() == ["user: hi\n\nbye"]
    assert_unknown(bench, "conv_1", other)
    reference = {"type": "item_reference", "id": "msg_mine"}
    for ask in (bench.prepare, bench.count):
        with pytest.raises(InvalidRequestError) as refused:
            await ask(other, input=[reference])
        assert refused.value.code == "item_not_found"
    with pytest.raises(InvalidRequestError) as refused:
        bench.create_conversation(other, items=[reference])
    assert refused.value.code == "item_not_found"
    # It has lost nothing by that.
    assert await bench.count(owner, input=[reference]) == 1
    assert bench.texts("conv_1", owner) == ["user: hi", "user: bye", "assistant: Bye"]
    for use in USES.values():
        if use is not USES["delete"]:
            use(bench, "conv_1", owner)
    USES["delete"](bench, "conv_1", owner)


async def test_one_name_of_two_keys_is_two_conversations(mock_clock: trio.testing.MockClock) -> None:
    bench = ServiceBench()
    for owner in ("one", "two", None):
        await turn(bench, "talk", f"hi from {owner}", f"Hello {owner}", owner=owner)
        assert bench.prompt() == [f"user: hi from {owner}"]
    for owner in ("one", "two", None):
        assert bench.texts("talk", owner) == [f"user: hi from {owner}", f"assistant: Hello {owner}"]
    bench.conversations.delete("two", "talk")
    assert (len(bench.items("talk", "one")), len(bench.items("talk"))) == (2, 2)


async def test_conversations_go_on_where_responses_are_not_stored() -> None:
    bench = ServiceBench(responses=limits(max_entries=0))
    created = await turn(bench, "talk", "a", "b")
    assert created["store"] is False
    assert bench.texts("talk") == ["user: a", "assistant: b"]
    await turn(bench, "talk", "c", "d", store=False)
    assert bench.texts("talk") == ["user: a", "assistant: b"]
