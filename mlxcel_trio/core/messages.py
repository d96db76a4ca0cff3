"""Chat messages: what a chat template renders."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class ToolCall(Struct, frozen=True):
    """A call inside an assistant turn; ``arguments`` is text as the model wrote it, JSON or not."""

    call_id: str
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True):
    """One turn. ``reasoning`` and ``tool_calls`` belong to assistants, ``call_id`` to role ``tool``."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
