"""The body of ``POST /v1/responses``.

Explicit ``null`` and an absent key are the same for every optional field. Unknown keys are ignored.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from mlxcel_trio.protocol.items import InputItem
from mlxcel_trio.protocol.tools import NULL, TextParam, ToolChoiceParam, ToolParam


class ReasoningParam(Struct, frozen=True):
    """Reasoning options: echoed, never mapped onto the chat template."""

    effort: str | None = None
    summary: str | None = None


class ConversationRef(Struct, frozen=True):
    """The object form of ``conversation``."""

    id: str


class ContextManagementEntry(Struct, frozen=True):
    """An entry of ``context_management``."""

    type: str | None = None
    compact_threshold: int | None = None


class CreateResponse(Struct, frozen=True, kw_only=True):
    """Everything a create request may say, with the wire's types and without its limits."""

    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationRef | None = None
    context_management: list[ContextManagementEntry] | None = None
    prompt: Raw = NULL

    tools: list[ToolParam] | None = None
    tool_choice: str | ToolChoiceParam | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextParam | None = None
    reasoning: ReasoningParam | None = None

    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    truncation: str | None = None
    include: list[str] | None = None

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: Raw = NULL

    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
