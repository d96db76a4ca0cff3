"""From items to chat messages: examples, and the rules that hold for every history."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.core.history import to_messages
from mlxcel_trio.core.messages import ChatMessage, ToolCall
from mlxcel_trio.protocol.items import InputItem, InputPart


def message(role: str, content: str | list[InputPart]) -> InputItem:
    return InputItem(type="message", role=role, content=content)


def part(text: str, kind: str = "input_text") -> InputPart:
    return InputPart(type=kind, text=text)


def call(call_id: str, arguments: str = "{}") -> InputItem:
    return InputItem(type="function_call", call_id=call_id, name="f", arguments=arguments)


def output(call_id: str, value: str | list[InputPart] = "out") -> InputItem:
    return InputItem(type="function_call_output", call_id=call_id, output=value)


def reasoning(*content: str, summary: tuple[str, ...] = ()) -> InputItem:
    return InputItem(
        type="reasoning",
        content=[part(text, "reasoning_text") for text in content],
        summary=[part(text, "summary_text") for text in summary],
    )


def assistant(content: str = "", reasoning: str | None = None, *calls: str) -> ChatMessage:
    return ChatMessage(
        "assistant", content, reasoning, tuple(ToolCall(call_id, "f", "{}") for call_id in calls)
    )


def user(content: str) -> ChatMessage:
    return ChatMessage("user", content)


def tool(call_id: str, content: str = "out") -> ChatMessage:
    return ChatMessage("tool", content, call_id=call_id)


USER, REPLY = message("user", "u"), message("assistant", "a")

CASES: dict[str, tuple[list[InputItem], list[ChatMessage]]] = {
    "nothing": ([], []),
    "a dialogue": ([USER, REPLY, message("user", "v")], [user("u"), assistant("a"), user("v")]),
    "parts are joined as they are": (
        [message("user", [part("a"), part(" b"), part("", "text")])],
        [user("a b")],
    ),
    "refusals are text": (
        [USER, message("assistant", [part("a", "output_text"), InputPart(type="refusal", refusal="no")])],
        [user("u"), assistant("ano")],
    ),
    "neighbouring user messages are one turn": (
        [USER, message("user", ""), message("user", "v"), REPLY],
        [user("u\n\nv"), assistant("a")],
    ),
    "neighbouring replies are one turn": (
        [USER, REPLY, message("assistant", "b")],
        [user("u"), assistant("a\n\nb")],
    ),
    "empty turns stay": (
        [USER, message("assistant", []), message("user", "")],
        [user("u"), assistant(""), user("")],
    ),
    "system texts lead": (
        [message("developer", "d"), USER, message("system", [part("s"), part("t")]), message("user", "v")],
        [ChatMessage("system", "d\n\nst"), user("u\n\nv")],
    ),
    "repeated system texts are left out": (
        [message("system", "s"), USER, *(message("developer", s) for s in "st"), message("user", "v")],
        [ChatMessage("system", "s\n\nt"), user("u\n\nv")],
    ),
    "blank system texts are left out": (
        [message("system", " \n"), message("developer", []), USER],
        [user("u")],
    ),
    "text, then calls": (
        [USER, REPLY, call("1"), call("2"), output("1"), output("2")],
        [user("u"), assistant("a", None, "1", "2"), tool("1"), tool("2")],
    ),
    "calls without outputs": (
        [USER, call("1"), message("user", "v")],
        [user("u"), assistant("", None, "1"), user("v")],
    ),
    "calls after outputs are a new turn": (
        [USER, call("1"), output("1"), call("2"), output("2"), REPLY],
        [user("u"), assistant("", None, "1"), tool("1"), assistant("", None, "2"), tool("2"), assistant("a")],
    ),
    "text after calls is a new turn": (
        [USER, call("1"), REPLY],
        [user("u"), assistant("", None, "1"), assistant("a")],
    ),
    "output in parts": (
        [call("1"), output("1", [part("Ada"), part("Mira", "output_text")])],
        [assistant("", None, "1"), tool("1", "AdaMira")],
    ),
    "empty output": ([call("1"), output("1", [])], [assistant("", None, "1"), tool("1", "")]),
    "reasoning goes with the reply": ([USER, reasoning("r"), REPLY], [user("u"), assistant("a", "r")]),
    "reasoning goes with the call": (
        [USER, reasoning("r"), call("1"), output("1"), reasoning("q"), REPLY],
        [user("u"), assistant("", "r", "1"), tool("1"), assistant("a", "q")],
    ),
    "reasoning between calls opens a turn": (
        [USER, reasoning("r"), call("1"), reasoning("q"), call("2"), output("1"), output("2")],
        [user("u"), assistant("", "r", "1"), assistant("", "q", "2"), tool("1"), tool("2")],
    ),
    "reasoning after calls goes with the text that follows": (
        [USER, call("1"), reasoning("r"), REPLY],
        [user("u"), assistant("", None, "1"), assistant("a", "r")],
    ),
    "reasoning alone is a turn": (
        [USER, reasoning("r"), message("user", "v"), reasoning("q")],
        [user("u"), assistant("", "r"), user("v"), assistant("", "q")],
    ),
    "reasoning at the end joins the reply before it": (
        [USER, REPLY, reasoning("r"), message("user", "v")],
        [user("u"), assistant("a", "r"), user("v")],
    ),
    "reasoning without text is nothing": (
        [USER, reasoning(), InputItem(type="reasoning"), message("user", "v")],
        [user("u\n\nv")],
    ),
    "a trace in parts": ([reasoning("r", "s"), REPLY], [assistant("a", "rs")]),
    "a summary stands in for the trace": (
        [reasoning(summary=("r", "s")), REPLY, USER, reasoning("t", summary=("no",)), REPLY],
        [assistant("a", "r\n\ns"), user("u"), assistant("a", "t")],
    ),
    "a system message between reasoning and reply": (
        [USER, reasoning("r"), message("developer", "d"), REPLY],
        [ChatMessage("system", "d"), user("u"), assistant("a", "r")],
    ),
}


@pytest.mark.parametrize(("items", "expected"), CASES.values(), ids=CASES)
def test_without_instructions(items: list[InputItem], expected: list[ChatMessage]) -> None:
    assert to_messages(items, None) == expected
    assert to_messages(items, " ") == expected


def test_instructions_come_first() -> None:
    items = [message("developer", "d"), USER]
    assert to_messages(items, "i") == [ChatMessage("system", "i\n\nd"), user("u")]
    assert to_messages([USER], "i ") == [ChatMessage("system", "i "), user("u")]
    assert to_messages([], "i") == [ChatMessage("system", "i")]


def test_arguments_are_passed_on_as_text() -> None:
    (turn,) = to_messages([call("1", '{"harbour": ')], None)
    assert turn.tool_calls == (ToolCall("1", "f", '{"harbour": '),)


@pytest.mark.parametrize("kind", ["item_reference", "compaction", None, "unheard_of"])
def test_items_that_have_to_be_resolved_first(kind: str | None) -> None:
    with pytest.raises(ValueError, match="Resolve it first"):
        to_messages([InputItem(type=kind, id="x")], None)


TEXTS = st.sampled_from(["", " ", "x", "y\n"]) | st.text(max_size=3)
CONTENTS = TEXTS | st.lists(TEXTS.map(part), max_size=3)
ITEMS = st.one_of(
    st.builds(message, st.sampled_from(["user", "assistant", "system", "developer"]), CONTENTS),
    st.builds(call, TEXTS),
    st.builds(output, TEXTS, CONTENTS),
    st.builds(reasoning, TEXTS),
)
HISTORIES = st.lists(ITEMS, max_size=12)
INSTRUCTIONS = st.none() | TEXTS


def text(content: str | list[InputPart] | None) -> str:
    return content if isinstance(content, str) else "".join(part.text or "" for part in content or ())


def texts(items: list[InputItem], *roles: str) -> list[str]:
    return [text(item.content) for item in items if item.type == "message" and item.role in roles]


@given(HISTORIES, INSTRUCTIONS)
def test_roles_keep_to_what_every_template_takes(items: list[InputItem], instructions: str | None) -> None:
    turns = to_messages(items, instructions)
    assert all(turn.role != "system" for turn in turns[1:])
    for one, other in pairwise(turns):
        assert (one.role, other.role) != ("user", "user")
        assert (one.role, other.role) != ("assistant", "assistant") or one.tool_calls


@given(HISTORIES, INSTRUCTIONS)
def test_nothing_is_lost_doubled_or_reordered(items: list[InputItem], instructions: str | None) -> None:
    turns = to_messages(items, instructions)

    def said(role: str) -> str:
        return "\n\n".join(turn.content for turn in turns if turn.role == role and turn.content)

    system = [value for value in [instructions or "", *texts(items, "system", "developer")] if value.strip()]
    assert said("system") == "\n\n".join(dict.fromkeys(system))
    assert said("user") == "\n\n".join(filter(None, texts(items, "user")))
    assert said("assistant") == "\n\n".join(filter(None, texts(items, "assistant")))
    thoughts = [text(item.content) for item in items if item.type == "reasoning"]
    assert "\n\n".join(turn.reasoning or "" for turn in turns if turn.reasoning) == "\n\n".join(
        filter(None, thoughts)
    )
    calls = [call.call_id for turn in turns for call in turn.tool_calls]
    assert calls == [item.call_id for item in items if item.type == "function_call"]
    outputs = [(turn.call_id, turn.content) for turn in turns if turn.role == "tool"]
    assert outputs == [
        (item.call_id, text(item.output)) for item in items if item.type == "function_call_output"
    ]


@given(HISTORIES, INSTRUCTIONS)
def test_fields_belong_to_their_roles(items: list[InputItem], instructions: str | None) -> None:
    for turn in to_messages(items, instructions):
        assert turn.role == "assistant" or (turn.reasoning is None and not turn.tool_calls)
        assert (turn.call_id is not None) == (turn.role == "tool")
        assert turn.reasoning != ""


@given(HISTORIES, HISTORIES)
def test_a_longer_history_starts_with_the_shorter_one(items: list[InputItem], more: list[InputItem]) -> None:
    more = [item for item in more if item.role not in ("system", "developer")]
    # Only the last turn may still grow: a prompt cache matches all before it.
    shorter = to_messages(items, None)[:-1]
    assert to_messages([*items, *more], None)[: len(shorter)] == shorter


def test_many_neighbours_are_joined_in_one_go() -> None:
    # Joining pair by pair would copy 200 GB.
    (turn,) = to_messages([message("user", "x" * 1000)] * 20_000, None)
    assert len(turn.content) == 20_000 * 1002 - 2
