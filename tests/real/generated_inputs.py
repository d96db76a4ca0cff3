"""Create requests that nobody would write by hand, the same ones in every run."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.published import Json

Body = dict[str, Any]

CONVERSATIONS = 16

_MARKUP = (
    "<|im_end|>", "<|im_start|>system\n", "<|endoftext|>", "<think>", "</think>\n", "<tool_call>",
    "</tool_call>", "<tool_response>", "{{ messages }}", "{%- if",
)  # fmt: skip
_WORDS = (
    "word",
    " And",
    "\n\n",
    "naïve",
    "42",
    "привет",
    "漢字",
    "שלום",
    "e\u0301",
    "\N{ZERO WIDTH JOINER}",
    "\0",
    "\t",
)
_PLANES = 17
_PLANE_SIZE = 0x10000
_SURROGATES = range(0xD800, 0xE000)


class RequestGenerator:
    """Makes create requests, and takes their responses to continue from.

    Some are refused: for an empty dialogue, or a reference to an item that there is not.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311
        self._call_numbers = count()
        self._answered: list[Json] = []

    def body(self) -> Body:
        """The next request."""
        chance = self._random.random
        fields: Body = {"input": self._text() if chance() < 0.3 else self._items()}
        if chance() < 0.3:
            fields["instructions"] = self._text()
        if chance() < 0.1:
            fields["chat_template_kwargs"] = {"enable_thinking": False}
        return fields | self._history()

    def take(self, response: Json) -> None:
        """Let later requests continue from ``response`` and refer to its items."""
        self._answered.append(response)

    def _history(self) -> Body:
        chance = self._random.random()
        if chance < 0.35 and self._answered:
            return {"previous_response_id": self._random.choice(self._answered)["id"]}
        if chance < 0.7:
            return {"conversation": f"talk_{self._random.randrange(CONVERSATIONS)}"}
        return {}

    def _items(self) -> list[Body]:
        kinds = (self._message, self._message, self._calls, self._reasoning, self._reference)
        groups = [self._random.choice(kinds)() for _ in range(self._random.randint(1, 3))]
        return [item for group in groups for item in group]

    def _message(self) -> list[Body]:
        role = self._random.choice(("user", "user", "assistant", "system", "developer"))
        if self._random.random() < 0.5:
            return [{"role": role, "content": self._text()}]
        kind = "output_text" if role == "assistant" else "input_text"
        parts: list[Body] = [{"type": kind, "text": self._text()} for _ in range(self._random.randrange(4))]
        if role == "assistant" and self._random.random() < 0.2:
            parts.append({"type": "refusal", "refusal": self._text()})
        return [{"type": "message", "role": role, "content": parts}]

    def _calls(self) -> list[Body]:
        """Calls, most of them with outputs, which may come in another order."""
        ids = [f"call_{next(self._call_numbers)}" for _ in range(self._random.randint(1, 3))]
        calls = [
            {"type": "function_call", "call_id": call_id, "name": "look_up", "arguments": self._arguments()}
            for call_id in ids
        ]
        answered = self._random.sample(ids, self._random.randint(0, len(ids)))
        outputs = [
            {"type": "function_call_output", "call_id": call_id, "output": self._output()}
            for call_id in answered
        ]
        return [*calls, *outputs]

    def _arguments(self) -> str:
        return self._random.choice(("{}", '{"city": "Zürich", "deep": {"list": [1, null]}}', self._text()))

    def _output(self) -> str | list[Body]:
        if self._random.random() < 0.5:
            return self._text()
        return [{"type": "input_text", "text": self._text()} for _ in range(self._random.randrange(3))]

    def _reasoning(self) -> list[Body]:
        item: Body = {"type": "reasoning", "summary": []}
        if self._random.random() < 0.7:
            item["content"] = [{"type": "reasoning_text", "text": self._text()}]
        if self._random.random() < 0.5:
            item["summary"] = [{"type": "summary_text", "text": self._text()}]
        return [item]

    def _reference(self) -> list[Body]:
        if not self._answered or self._random.random() < 0.05:
            return [{"type": "item_reference", "id": "msg_unknown"}]
        output = self._random.choice(self._answered)["output"]
        return [{"type": "item_reference", "id": self._random.choice(output)["id"]}]

    def _text(self) -> str:
        piece = self._random.choice
        pieces = (lambda: piece(_WORDS), lambda: piece(_MARKUP), self._character, lambda: " ")
        return "".join(piece(pieces)() for _ in range(self._random.randrange(12)))

    def _character(self) -> str:
        """Any character, noncharacters and unassigned ones included, of any plane."""
        code = self._random.randrange(_PLANES) * _PLANE_SIZE + self._random.randrange(_PLANE_SIZE)
        return chr(code if code not in _SURROGATES else 0xFFFD)
