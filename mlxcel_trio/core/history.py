"""From items to the turns that a chat template renders.

Templates differ in what they refuse, so the turns keep to what all of them take: one system message in front,
never two user turns in a row, and two assistant turns in a row only when the first ends in calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from mlxcel_trio.core.messages import ChatMessage, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_trio.protocol.items import InputItem, InputPart

_BLANK_LINE = "\n\n"
_SYSTEM_ROLES = ("system", "developer")


def to_messages(items: Sequence[InputItem], instructions: str | None) -> list[ChatMessage]:
    """Chat messages for validated items.

    ``instructions`` and the texts of system and developer messages become one leading system message, in
    order and separated by blank lines; blank ones and repeats are left out. Neighbouring user messages are
    one turn, and so are reasoning, text and then calls of an assistant. An empty message stays an empty turn,
    and reasoning that nothing follows is a turn of its own. Further items extend the last turn or follow it.

    :raises ValueError: an item of a type that has to be resolved before, such as a reference.
    """
    system_texts = [instructions or ""]
    turns = _Turns()
    for item in items:
        if item.type == "message" and item.role in _SYSTEM_ROLES:
            system_texts.append(text_of(item.content))
        else:
            turns.add(item)
    system = _BLANK_LINE.join(text for text in dict.fromkeys(system_texts) if text.strip())
    leading = [ChatMessage("system", system)] if system else []
    return leading + turns.finish()


def text_of(content: str | list[InputPart] | None) -> str:
    """All text of a message or tool output; parts are joined without a separator, refusals are text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join((part.refusal if part.type == "refusal" else part.text) or "" for part in content)


def reasoning_text(item: InputItem) -> str:
    """The trace of a reasoning item, or else its summary, one paragraph a part."""
    return text_of(item.content) or _paragraphs([part.text or "" for part in item.summary or ()])


def _paragraphs(texts: Sequence[str]) -> str:
    return _BLANK_LINE.join(text for text in texts if text)


class _Turn(Struct):
    """A turn that can still grow."""

    role: Literal["user", "assistant", "tool"]
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    call_id: str | None = None

    def message(self) -> ChatMessage:
        return ChatMessage(
            role=self.role,
            content=_paragraphs(self.texts),
            reasoning=_paragraphs(self.reasoning) or None,
            tool_calls=tuple(self.calls),
            call_id=self.call_id,
        )


class _Turns:
    """Turns in the making: each item joins the last one or opens the next."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []

    def add(self, item: InputItem) -> None:
        match item.type:
            case "message" if item.role == "assistant":
                self._talking().texts.append(text_of(item.content))
            case "message":
                self._last("user").texts.append(text_of(item.content))
            case "reasoning":
                if text := reasoning_text(item):
                    self._talking().reasoning.append(text)
            case "function_call":
                call = ToolCall(item.call_id or "", item.name or "", item.arguments or "")
                self._last("assistant").calls.append(call)
            case "function_call_output":
                self._turns.append(_Turn("tool", texts=[text_of(item.output)], call_id=item.call_id))
            case other:
                raise ValueError(f"An item of type {other!r} has no place in a prompt. Resolve it first.")

    def finish(self) -> list[ChatMessage]:
        return [turn.message() for turn in self._turns]

    def _last(self, role: Literal["user", "assistant"]) -> _Turn:
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role))
        return self._turns[-1]

    def _talking(self) -> _Turn:
        """The assistant turn that takes text and reasoning: templates render both in front of its calls."""
        if self._turns and self._turns[-1].calls:
            self._turns.append(_Turn("assistant"))
        return self._last("assistant")
