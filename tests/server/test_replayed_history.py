"""History that a client sends back, whole or in part: whatever its form, the model is asked the same.

What is right is the prompt of one request that carries the dialogue plainly, without ids, and each item once.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from support.plain_items import dialogue, joined, plain
from support.served import reasoning_of, serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from support.published import Json
    from support.served import Served

    Form = Callable[[Json], Json]


THINKS = ScriptRow(when="two", emit=("<think>", "carry", "</think>", "\n\n", "four"))
ANSWERS = ScriptRow(emit=("six",))
ASKED: Json = {"role": "user", "content": "two and two?"}
NEXT: Json = {"role": "user", "content": "three and three?"}
THOUGHT: Json = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "carry"}],
}
SAID: Json = {"role": "assistant", "content": "four"}
NOISE: Json = {"phase": "final_answer", "created_by": "x", "provider_data": {"a": [1]}, "namespace": None}


def without(item: Json, *keys: str) -> Json:
    return {key: value for key, value in item.items() if key not in keys}


def reference(item: Json) -> Json:
    return {"type": "item_reference", "id": item["id"]}


def with_nulls(item: Json) -> Json:
    return item | {"status": None, "encrypted_content": None}


def with_noise(item: Json) -> Json:
    noise = {
        "annotations": [{"type": "url_citation", "url": "u"}],
        "logprobs": [{"token": "f"}],
        "parsed": None,
    }
    return NOISE | item | {"content": [noise | without(part, *noise) for part in item["content"]]}


def in_one_string(item: Json) -> Json:
    return item | {"content": joined(item["content"])}


def in_two_parts(item: Json) -> Json:
    return item | {
        "content": [part | {"text": text} for part in item["content"] for text in halves(part["text"])]
    }


def halves(text: str) -> tuple[str, str]:
    return text[:2], text[2:]


def as_summary(item: Json) -> Json:
    return item | {"summary": [{"type": "summary_text", "text": joined(item["content"])}], "content": None}


BOTH_NAMED: dict[str, Form] = {
    "as it came": lambda item: item,
    "reference": reference,
    "nulls": with_nulls,
    "noise": with_noise,
    "no status": lambda item: without(item, "status"),
}
"""Forms of a message or a reasoning item that keep its id."""

BOTH_NAMELESS: dict[str, Form] = {
    "no id": lambda item: without(item, "id"),
    "id null": lambda item: with_nulls(item) | {"id": None},
    "bare": lambda item: plain(item) if item["type"] == "message" else THOUGHT,
}
MESSAGE_FORMS = BOTH_NAMED | BOTH_NAMELESS | {"a string": in_one_string, "two parts": in_two_parts}
THOUGHT_FORMS = BOTH_NAMED | BOTH_NAMELESS | {"a summary": as_summary}


class Bench:
    """A server, and what became of requests to it."""

    def __init__(self, served: Served) -> None:
        self.served = served

    async def ask(self, items: Iterable[Json], **fields: Any) -> tuple[Json, str]:
        """The response, and the prompt that it answers."""
        self.served.engine.backend.prompts.clear()
        response = await self.served.create(input=list(items), **fields)
        (prompt,) = self.served.engine.prompts()
        return response, prompt

    async def prompt(self, items: Iterable[Json], **fields: Any) -> str:
        _, prompt = await self.ask(items, **fields)
        return prompt

    async def first_turn(self, **fields: Any) -> Json:
        response, _ = await self.ask([ASKED], **fields)
        assert (reasoning_of(response), text_of(response)) == ("carry", "four")
        return response


async def test_the_plain_dialogue_itself() -> None:
    async with serving_script(THINKS, ANSWERS) as served:
        bench = Bench(served)
        # Reasoning is shown on the turns after the newest user message only.
        shown = "<think>\ncarry\n</think>\n\nfour<|im_end|>\n<|im_start|>assistant\n"
        assert (await bench.prompt([ASKED, THOUGHT, SAID])).endswith(f"<|im_start|>assistant\n{shown}")
        hidden = await bench.prompt([ASKED, THOUGHT, SAID, NEXT])
        assert "assistant\nfour<|im_end|>\n<|im_start|>user\nthree and three?<|im_end|>\n" in hidden
        assert "carry" not in hidden


@pytest.mark.parametrize("ending", [[], [NEXT]], ids=["to go on", "next question"])
async def test_output_is_replayed_in_any_form(ending: list[Json]) -> None:
    async with serving_script(THINKS, ANSWERS) as served:
        bench = Bench(served)
        right = await bench.prompt([ASKED, THOUGHT, SAID, *ending])
        thought, message = (await bench.first_turn())["output"]
        for (how, form), (other, other_form) in product(THOUGHT_FORMS.items(), MESSAGE_FORMS.items()):
            items = [ASKED, form(thought), other_form(message), *ending]
            assert await bench.prompt(items) == right, (how, other)


@pytest.mark.parametrize("ending", [[], [NEXT]], ids=["to go on", "next question"])
async def test_what_a_chain_has_is_not_repeated(ending: list[Json]) -> None:
    async with serving_script(THINKS, ANSWERS) as served:
        bench = Bench(served)
        right = await bench.prompt([ASKED, THOUGHT, SAID, *ending])
        first = await bench.first_turn()
        thought, message = first["output"]
        (asked,) = await listed(served, first)
        for (how, form), (other, other_form) in product(BOTH_NAMED.items(), repeat=2):
            items = [reference(asked), form(thought), other_form(message), asked, *ending]
            made, prompt = await bench.ask(items, previous_response_id=first["id"])
            assert prompt == right, (how, other)
            assert [plain(item) for item in await listed(served, made)] == ending


async def listed(served: Served, response: Json) -> list[Json]:
    reply = await served.client.get(f"/v1/responses/{response['id']}/input_items", params={"order": "asc"})
    data: list[Json] = reply.json()["data"]
    return data


async def test_what_a_conversation_has_is_not_repeated() -> None:
    async with serving_script(THINKS, ANSWERS) as served:
        bench = Bench(served)
        right = await bench.prompt([ASKED, THOUGHT, SAID, NEXT])
        for number, form in enumerate(BOTH_NAMED.values()):
            output = (await bench.first_turn(conversation=f"c{number}"))["output"]
            items = [*map(form, output), NEXT]
            assert await bench.prompt(items, conversation=f"c{number}") == right
            page = (await served.client.get(f"/v1/conversations/c{number}/items")).json()
            assert [item["type"] for item in page["data"]] == ["message"] * 3 + ["reasoning", "message"]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": []}], ids=["absent", "null", "empty"])
@pytest.mark.parametrize(
    "encrypted", [{}, {"encrypted_content": None}, {"encrypted_content": "Zm9v"}], ids=str
)
async def test_reasoning_without_its_text(content: Json, encrypted: Json) -> None:
    async with serving_script(THINKS, ANSWERS) as served:
        bench = Bench(served)
        first = await bench.first_turn()
        thought, message = first["output"]
        bare = {"type": "reasoning", "id": thought["id"], "summary": []} | content | encrypted
        assert await bench.prompt([ASKED, bare, message]) == await bench.prompt([ASKED, SAID])
        # What is stored has the text.
        chained = await bench.prompt([bare, message], previous_response_id=first["id"])
        assert chained == await bench.prompt([ASKED, THOUGHT, SAID])


USER_FORMS: dict[str, Json] = {
    "with a type": {"type": "message", "role": "user", "content": "two and two?"},
    "a part": {"role": "user", "content": [{"type": "input_text", "text": "two and two?"}]},
    "a part of chat completions": {"role": "user", "content": [{"type": "text", "text": "two and two?"}]},
    "parts": {
        "role": "user",
        "content": [{"type": "input_text", "text": text} for text in ("two ", "and two?")],
    },
    "an id": {"role": "user", "id": "msg_mine", "status": "completed", "content": "two and two?"},
    "nulls": {"type": "message", "id": None, "status": None, "role": "user", "content": "two and two?"},
    "noise": NOISE
    | {"role": "user", "content": [{"type": "input_text", "text": "two and two?", "detail": "x"}]},
}


async def test_what_the_user_said_may_have_any_form() -> None:
    async with serving_script(THINKS, ANSWERS) as served:
        bench = Bench(served)
        right = await bench.prompt([ASKED, SAID, NEXT])
        for how, asked in USER_FORMS.items():
            assert await bench.prompt([asked, SAID, NEXT]) == right, how


CALL: Json = {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": '{"x": 1}'}
OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
CALL_FORMS: tuple[Json, ...] = (
    CALL,
    CALL | {"id": "fc_1", "status": "completed"},
    CALL | {"id": None, "status": None},
    NOISE | CALL | {"id": "fc_1", "parsed_arguments": {"x": 1}},
)
OUTPUT_FORMS: tuple[Json, ...] = (
    OUTPUT,
    OUTPUT | {"id": "fco_1", "status": "completed"},
    OUTPUT | {"id": None, "status": None},
    NOISE | OUTPUT | {"output": [{"type": "input_text", "text": text} for text in halves("found")]},
    OUTPUT | {"output": [{"type": "output_text", "text": "found", "annotations": []}]},
)


async def test_calls_and_outputs_are_replayed_in_any_form() -> None:
    async with serving_script(ANSWERS) as served:
        bench = Bench(served)
        right = await bench.prompt([ASKED, THOUGHT, CALL, OUTPUT])
        assert "<think>\ncarry\n</think>" in right
        assert (right.count("<tool_call>"), right.count("<tool_response>\nfound\n")) == (1, 1)
        for call, output in product(CALL_FORMS, OUTPUT_FORMS):
            assert await bench.prompt([ASKED, THOUGHT, call, output]) == right, (call, output)


@pytest.mark.parametrize("form", BOTH_NAMED.values(), ids=BOTH_NAMED.keys())
async def test_each_hop_sends_the_whole_history_again(form: Form) -> None:
    questions = [f"two and two, for the {time} time?" for time in ("first", "second", "third")]
    async with serving_script(THINKS) as served:
        bench = Bench(served)
        history: list[Json] = []
        previous: str | None = None
        for number, question in enumerate(questions, start=1):
            items = [*map(form, history), {"role": "user", "content": question}]
            made, prompt = await bench.ask(items, previous_response_id=previous)
            assert prompt == await bench.prompt(dialogue(*questions[:number], answer="four"))
            history += [*await listed(served, made), *made["output"]]
            previous = made["id"]
        assert [item["type"] for item in history] == ["message", "reasoning", "message"] * 3


# What cannot be meant


async def test_a_reference_to_what_is_gone() -> None:
    async with serving_script(THINKS, ANSWERS) as served:
        bench = Bench(served)
        kept = await bench.first_turn()
        not_kept = await bench.first_turn(store=False)
        served.engine.backend.prompts.clear()
        for response in (kept, not_kept):
            await served.client.delete(f"/v1/responses/{response['id']}")
            for item in response["output"]:
                refused = await served.refusal(input=[ASKED, reference(item), NEXT])
                assert refused.status_code == 400
                error = refused.json()["error"]
                assert (error["param"], error["code"]) == ("input[1].id", "item_not_found")
                assert item["id"] in error["message"]
        assert served.engine.prompts() == []


async def test_a_call_that_is_in_the_chain_already() -> None:
    async with serving_script(ANSWERS) as served:
        bench = Bench(served)
        first = await served.create(input=[ASKED, CALL | {"id": "fc_1"}])
        again = await bench.prompt([CALL | {"id": "fc_1"}, OUTPUT], previous_response_id=first["id"])
        assert again == await bench.prompt([ASKED, CALL, {"role": "assistant", "content": "six"}, OUTPUT])
        for call in (CALL, CALL | {"id": "fc_2"}, CALL | {"id": "fc_1", "arguments": "{}"}):
            refused = await served.refusal(input=[call, OUTPUT], previous_response_id=first["id"])
            assert refused.json()["error"]["param"] == "input[0].call_id"
