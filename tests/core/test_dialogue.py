"""What a request continues and adds: ids, references, nothing said twice, pairing, any split into hops."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dialogues import LOGPROB, VARIANTS, dialogues, hops, replayed, sent

from mlxcel_trio.core.dialogue import Dialogue, continue_dialogue
from mlxcel_trio.core.history import to_messages
from mlxcel_trio.core.stored_items import read_items, store_input, store_output
from mlxcel_trio.core.transcript import EMPTY, StoredItem, Transcript
from mlxcel_trio.core.validation.items import read_input
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.items import InputItem
from mlxcel_trio.protocol.responses import FunctionCall, Message, OutputText, Reasoning, ReasoningText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from support.dialogues import Hop, Variant

    from mlxcel_trio.core.messages import ChatMessage
    from mlxcel_trio.protocol.responses import OutputItem

Value = str | list[dict[str, Any]] | None

NOTHING_ELSEWHERE: dict[str, StoredItem] = {}
REPLY = Message("msg_0", "completed", (OutputText("Hello.", logprobs=(LOGPROB,)),))
THOUGHT = Reasoning("rs_0", "completed", (ReasoningText("Hm."),))
CALL = FunctionCall("fc_0", "c0", "get_tide", "{}", "completed")


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": text} | fields


def call(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"} | fields


def output(call_id: str, text: str = "3 m", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text} | fields


def reference(item_id: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": item_id}


def items(value: Value) -> tuple[InputItem, ...]:
    """The input of a request, decoded and validated."""
    return read_input(msgspec.convert(value, str | list[InputItem] | None))


def stored(**fields: Any) -> StoredItem:
    """The stored form of one item that came with an id."""
    (item,) = items([fields])
    return store_input(item, item.id or "")


def history(*turn: dict[str, Any] | OutputItem) -> Transcript:
    return EMPTY.append(stored(**item) if isinstance(item, dict) else store_output(item) for item in turn)


def go_on(
    past: Transcript,
    value: Value,
    elsewhere: Mapping[str, StoredItem] = NOTHING_ELSEWHERE,
    path: str = "input",
) -> Dialogue:
    """The dialogue; ids that it makes are numbered from 1 on."""
    return go_on_with(past, items(value), elsewhere, path)


def go_on_with(
    past: Transcript,
    items: Sequence[InputItem],
    elsewhere: Mapping[str, StoredItem] = NOTHING_ELSEWHERE,
    path: str = "input",
) -> Dialogue:
    numbers = count(1)
    return continue_dialogue(
        past,
        items,
        find_item=elsewhere.get,
        new_id=lambda prefix: f"{prefix}_new{next(numbers)}",
        path=path,
    )


def refusal(
    past: Transcript,
    value: Value,
    elsewhere: Mapping[str, StoredItem] = NOTHING_ELSEWHERE,
    path: str = "input",
) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        go_on(past, value, elsewhere, path)
    assert caught.value.param is not None
    assert caught.value.param.startswith(path)
    return caught.value


def ids(dialogue: Dialogue) -> list[str]:
    """The ids of what the request adds."""
    return [item.id for item in dialogue.own]


def texts(dialogue: Dialogue) -> list[str]:
    """The turns that are rendered, one user message each."""
    return [turn.content for item in dialogue.items for turn in to_messages([item], None)]


# What a request adds


def test_a_string() -> None:
    dialogue = go_on(EMPTY, "hi")
    assert ids(dialogue) == ["msg_new1"]
    assert texts(dialogue) == ["hi"]
    assert dialogue.history is EMPTY


def test_a_request_that_adds_nothing() -> None:
    past = history(message("hi", id="a"))
    nothing: list[Value] = [None, []]
    for value in nothing:
        dialogue = go_on(past, value)
        assert dialogue.own == ()
        assert dialogue.history is past
        assert dialogue.items == tuple(read_items(past.all_items()))
    assert go_on(EMPTY, []) == Dialogue(EMPTY, (), ())


def test_the_history_comes_first() -> None:
    past = history(message("a", id="1")).append(history(REPLY).items)
    dialogue = go_on(past, [message("b", role="developer"), message("c")])
    assert texts(dialogue) == ["a", "Hello.", "b", "c"]
    assert ids(dialogue) == ["msg_new1", "msg_new2"]
    assert dialogue.history is past


def test_the_turn_is_what_was_given_and_what_was_made() -> None:
    dialogue = go_on(history(message("a", id="1")), [message("b", id="2"), reference("1"), message("c")])
    turn = dialogue.turn([THOUGHT, REPLY])
    assert turn[: len(dialogue.own)] == dialogue.own
    assert [item.id for item in turn] == ["2", "msg_new1", "rs_0", "msg_0"]
    assert [item.encoded for item in turn[2:]] == [store_output(THOUGHT).encoded, store_output(REPLY).encoded]


# Ids


@pytest.mark.parametrize("item_id", ["msg_1", "1", "x" * 500, "é\n👩🏽‍🚀", "msg_new1"])
def test_an_id_is_kept(item_id: str) -> None:
    assert ids(go_on(EMPTY, [message("a", id=item_id), message("b")])) == [item_id, "msg_new1"]


@pytest.mark.parametrize("no_id", [{}, {"id": None}, {"id": ""}])
def test_an_item_without_an_id_gets_one_of_its_kind(no_id: dict[str, Any]) -> None:
    value = [
        message("a", **no_id),
        {"type": "reasoning", "summary": []} | no_id,
        call("c", **no_id),
        output("c", **no_id),
        {"type": "compaction", "encrypted_content": "e30"} | no_id,
    ]
    assert ids(go_on(EMPTY, value)) == ["msg_new1", "rs_new2", "fc_new3", "fco_new4", "cmp_new5"]


@pytest.mark.parametrize("second", ["a", "b"])
def test_an_id_that_repeats_within_the_input_serves_once(second: str) -> None:
    dialogue = go_on(EMPTY, [message("a", id="1"), message(second, id="1"), call("c", id="1")])
    assert ids(dialogue) == ["1", "msg_new1", "fc_new2"]
    assert texts(dialogue)[:2] == ["a", second]


# References


def test_a_reference_is_the_item_itself() -> None:
    elsewhere = {"msg_9": stored(**message("there", id="msg_9"))}
    dialogue = go_on(history(message("a", id="1")), [reference("msg_9"), message("b")], elsewhere)
    assert dialogue.own[0] is elsewhere["msg_9"]  # held once, however many refer to it
    assert texts(dialogue) == ["a", "there", "b"]


@pytest.mark.parametrize("item_id", ["msg_9", "x" * 9999, "a\nb", "é"])
@pytest.mark.parametrize("path", ["input", "items"])
def test_an_unknown_reference(item_id: str, path: str) -> None:
    error = refusal(history(message("a", id="1")), [message("b"), reference(item_id)], path=path)
    assert (error.param, error.code) == (f"{path}[1].id", "item_not_found")
    assert "Send the item itself" in error.message
    assert "\n" not in error.message
    assert len(error.message) < 250


def test_a_reference_to_what_is_in_the_dialogue_adds_nothing() -> None:
    past = history(message("a", id="1"), REPLY)
    elsewhere = {"1": stored(**message("other", id="1")), "5": stored(**message("e", id="5"))}
    value = [
        reference("msg_0"),
        message("b", id="2"),
        reference("1"),
        reference("2"),
        reference("5"),
        reference("5"),
    ]
    dialogue = go_on(past, value, elsewhere)
    assert texts(dialogue) == ["a", "Hello.", "b", "e"]
    assert ids(dialogue) == ["2", "5"]


def test_a_reference_looks_back_only() -> None:
    value = [reference("2"), message("b", id="2")]
    assert refusal(EMPTY, value).param == "input[0].id"
    # With such an item stored, that is the one which is meant; the client's own is another one.
    dialogue = go_on(EMPTY, value, {"2": stored(**message("old", id="2"))})
    assert texts(dialogue) == ["old", "b"]
    assert ids(dialogue) == ["2", "msg_new1"]


def test_a_reference_means_the_latest_item_of_that_id() -> None:
    past = history(message("a", id="1"), message("b", id="1"))
    assert texts(go_on(past, [reference("1")])) == ["a", "b"]


# What is there already is not repeated


@pytest.mark.parametrize("made", [REPLY, THOUGHT, CALL], ids=lambda made: made.id)
@pytest.mark.parametrize("how", VARIANTS)
def test_what_was_made_may_be_sent_again_in_any_form(made: OutputItem, how: Variant) -> None:
    past = history(message("a", id="1"), made)
    item = replayed(store_output(made).encoded, how)
    dialogue = go_on_with(past, [item])
    assert dialogue.own == ()
    assert len(dialogue.items) == 2


@pytest.mark.parametrize(
    "again",
    [
        message("a", id="msg_1"),
        message("a", id="msg_1", status="incomplete", type="message"),
        message([{"type": "input_text", "text": "a"}], id="msg_1"),  # type: ignore[arg-type]
        message([{"type": "text", "text": "a", "annotations": None}], id="msg_1", phase=None),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_what_was_given_may_be_sent_again_in_any_form(again: dict[str, Any]) -> None:
    past = history(message("a", id="msg_1"), REPLY)
    dialogue = go_on(past, [again, message("b", id="2")])
    assert texts(dialogue) == ["a", "Hello.", "b"]
    assert ids(dialogue) == ["2"]


@pytest.mark.parametrize(
    "other",
    [
        message("b", id="msg_1"),
        message("a ", id="msg_1"),
        message("a", id="msg_1", role="developer"),
        message("a", id="msg_1", role="assistant"),
        message([{"type": "input_text", "text": t} for t in ("a", "")], id="msg_1"),  # type: ignore[arg-type]
        {"type": "reasoning", "id": "msg_1", "summary": []},
        call("c", id="msg_1"),
    ],
    ids=repr,
)
def test_other_content_under_a_known_id_is_taken(other: dict[str, Any]) -> None:
    past = history(message("a", id="msg_1"))
    dialogue = go_on(past, [other])
    (item,) = dialogue.own  # under an id of its own: listings show one item for each
    assert item.id != "msg_1"
    assert item.encoded == stored(**other | {"id": item.id}).encoded
    assert len(dialogue.items) == 2


def test_a_client_that_numbers_the_items_of_each_request_loses_none() -> None:
    transcript = EMPTY
    said = ["a", "b", "c", "d"]
    for number, text in enumerate(said):
        dialogue = go_on(transcript, [message(text, id="1"), message(f"{text}{text}", id="2")])
        assert len(dialogue.items) == 2 * (number + 1)
        transcript = transcript.append(dialogue.turn([]))
    assert texts(go_on(transcript, None)) == ["a", "aa", "b", "bb", "c", "cc", "d", "dd"]


def test_such_a_client_may_say_the_same_twice() -> None:
    assert texts(go_on(history(message("yes", id="1")), [message("yes", id="1")])) == ["yes", "yes"]


def test_the_same_words_without_an_id_are_said_again() -> None:
    assert texts(go_on(history(message("yes", id="1")), "yes")) == ["yes", "yes"]


def test_the_whole_history_sent_again() -> None:
    past = history(message("a", id="msg_1"), THOUGHT, CALL, output("c0", id="fco_2"), REPLY)
    again = [replayed(item.encoded) for item in past.all_items()]
    assert go_on_with(past, again) == Dialogue(past, (), tuple(read_items(past.all_items())))


# Calls and outputs


@pytest.mark.parametrize(
    ("past", "value", "param"),
    [
        # outputs whose call is in the history, referred to, or sent along
        ([CALL], [output("c0")], None),
        ([CALL], [message("wait"), output("c0")], None),
        ([], [reference("fc_9"), output("c9")], None),
        ([], [call("c"), output("c")], None),
        ([CALL], [CALL, output("c0")], None),
        ([CALL], [reference("fc_0"), output("c0")], None),
        ([CALL], [call("c1"), output("c1")], None),
        ([CALL], [], None),
        ([CALL, output("c0", id="fco_1")], [output("c0", id="fco_1")], None),
        # outputs without one
        ([], [output("c0")], "input[0].call_id"),
        ([CALL], [output("c1")], "input[0].call_id"),
        ([], [output("c9"), reference("fc_9")], "input[0].call_id"),
        ([], [reference("fco_9")], "input[0].call_id"),
        # the second output, the second call
        ([CALL, output("c0", id="fco_1")], [output("c0")], "input[0].call_id"),
        ([CALL, output("c0", id="fco_1")], [output("c0", "4 m", id="fco_1")], "input[0].call_id"),
        ([CALL], [output("c0"), output("c0")], "input[1].call_id"),
        ([CALL], [call("c0")], "input[0].call_id"),
        ([CALL], [call("c0", id="fc_0")], "input[0].call_id"),
        ([CALL], [reference("fc_9"), call("c9")], "input[1].call_id"),
        # the place is the one in the request, whatever before it adds nothing
        ([CALL], [reference("fc_0"), CALL, message("a"), output("c1")], "input[3].call_id"),
        ([CALL], [CALL, reference("fc_0"), reference("fc_9"), output("c9"), call("c9")], "input[4].call_id"),
    ],
    ids=repr,
)
def test_pairing(past: list[Any], value: list[Any], param: str | None) -> None:
    elsewhere = {
        "fc_9": stored(**call("c9", id="fc_9")),
        "fco_9": stored(**output("c9", id="fco_9")),
    }
    value = [msgspec.to_builtins(item) for item in value]
    if param is None:
        assert go_on(history(*past), value, elsewhere)
    else:
        assert refusal(history(*past), value, elsewhere).param == param
        path = "items"
        assert refusal(history(*past), value, elsewhere, path).param == param.replace("input", path)


# Any split of a dialogue says the same


def play(
    all_hops: Iterable[Hop],
    *,
    chained: bool = True,
    say_again: Callable[[tuple[StoredItem, ...]], list[InputItem]] = lambda past: [],
) -> list[Dialogue]:
    """The dialogue of each hop. A hop sends what ``say_again`` makes of the past, and then its own items.

    When ``chained`` every hop continues the one before it, otherwise each starts with nothing.
    """
    past = EMPTY
    numbers = count(1)
    played = []
    for hop in all_hops:
        known = {item.id: item for item in past.all_items()}
        dialogue = continue_dialogue(
            past if chained else EMPTY,
            [*say_again(past.all_items()), *hop.given],
            find_item=known.get,
            new_id=lambda prefix: f"{prefix}_new{next(numbers)}",
        )
        played.append(dialogue)
        past = past.append(item for item in dialogue.turn(hop.made) if item.id not in known)
    return played


def rendered(items: Iterable[InputItem]) -> list[ChatMessage]:
    return to_messages(list(items), None)


CUTS = st.sets(st.integers(1, 8))


@given(dialogues(), CUTS)
@settings(deadline=None)
def test_a_chain_says_what_its_requests_and_answers_said(
    said: list[InputItem | OutputItem], cuts: set[int]
) -> None:
    spoken: list[InputItem] = []
    split = hops(said, cuts)
    for hop, dialogue in zip(split, play(split), strict=True):
        spoken += hop.given
        at_once = go_on_with(EMPTY, spoken)
        assert rendered(dialogue.items) == rendered(at_once.items) == rendered(spoken)
        assert rendered(read_items(at_once.own)) == rendered(spoken)
        assert len(dialogue.items) == len(spoken)
        spoken += map(sent, hop.made)


@given(dialogues(), CUTS, st.data())
@settings(deadline=None)
def test_what_is_sent_again_changes_nothing(
    said: list[InputItem | OutputItem], cuts: set[int], data: st.DataObject
) -> None:
    def say_again(past: tuple[StoredItem, ...]) -> list[InputItem]:
        forms = st.sampled_from([None, *VARIANTS])
        chosen = data.draw(st.lists(st.tuples(st.sampled_from(past), forms), max_size=5)) if past else []
        return [
            InputItem(type="item_reference", id=item.id) if form is None else replayed(item.encoded, form)
            for item, form in chosen
        ]

    split = hops(said, cuts)
    for once, again in zip(play(split), play(split, say_again=say_again), strict=True):
        assert again.items == once.items
        assert [item.encoded for item in again.own] == [item.encoded for item in once.own]


@given(dialogues(), CUTS)
@settings(deadline=None)
def test_references_to_all_that_was_said_are_as_good_as_a_chain(
    said: list[InputItem | OutputItem], cuts: set[int]
) -> None:
    def refer(past: tuple[StoredItem, ...]) -> list[InputItem]:
        return [InputItem(type="item_reference", id=item.id) for item in past]

    split = hops(said, cuts)
    for chained, referring in zip(play(split), play(split, chained=False, say_again=refer), strict=True):
        assert referring.items == chained.items
        assert len(referring.own) == len(referring.items)


def seconds(exchanges: int) -> float:
    """Processor time for that many questions, calls and outputs: given, sent again, and referred to."""
    turns = [(message("a"), call(f"c{number}"), output(f"c{number}")) for number in range(exchanges)]
    given = items([item for turn in turns for item in turn])
    began = time.process_time()
    first = go_on_with(EMPTY, given)
    again = read_items(first.own)
    referred = [InputItem(type="item_reference", id=item.id) for item in first.own]
    assert go_on_with(EMPTY.append(first.own), [*again, *referred]).own == ()
    return time.process_time() - began


def test_the_time_is_linear_in_the_items() -> None:
    few = min(seconds(500) for _ in range(3))
    # Eight times the items take about eight times as long; if each looked through all others, 64 times.
    assert min(seconds(4000) for _ in range(2)) < 24 * few
