"""The response object, its output items and its usage, as the server sends them.

Every struct is frozen: an event holds the state as of its moment and can be encoded at any later one.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from mlxcel_trio.protocol.requests import ConversationRef
from mlxcel_trio.protocol.tools import FunctionTool, TextConfig, ToolChoice

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TopLogprob(Struct, frozen=True):
    """One alternative at a position; ``bytes`` is the UTF-8 of the token."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenLogprob(Struct, frozen=True):
    """A sampled token with its log probability and the likeliest alternatives."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """The text part of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """The text part of a reasoning item."""

    text: str


ContentPart = OutputText | ReasoningText


class Message(Struct, frozen=True, tag_field="type", tag="message"):
    """An assistant message."""

    id: str
    status: ItemStatus
    content: tuple[OutputText, ...]
    role: Literal["assistant"] = "assistant"


class FunctionCall(Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function tool; ``arguments`` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class Reasoning(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """The model's reasoning trace."""

    id: str
    status: ItemStatus
    content: tuple[ReasoningText, ...]
    summary: tuple[()] = ()


class Compaction(Struct, frozen=True, tag_field="type", tag="compaction"):
    """A summary of earlier turns; ``encrypted_content`` is client data, not a secret."""

    id: str
    encrypted_content: str


OutputItem = Message | FunctionCall | Reasoning | Compaction


class InputTokensDetails(Struct, frozen=True):
    """``cached_tokens`` were served by the prompt cache; nothing is billed for writing it."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    """``reasoning_tokens`` are the sampled tokens that went into reasoning items."""

    reasoning_tokens: int = 0


class Usage(Struct, frozen=True):
    """Token counts. ``output_tokens`` counts every sampled token, the end token included."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0


class IncompleteDetails(Struct, frozen=True):
    """Why a response ended before the model was done."""

    reason: Literal["max_output_tokens"]


class ResponseError(Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class ReasoningConfig(Struct, frozen=True):
    """The request's reasoning options, echoed."""

    effort: str | None
    summary: str | None


class Response(Struct, frozen=True, kw_only=True):
    """The response object. ``background`` is present on background responses only."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: Literal[True] | UnsetType = UNSET
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    model: str
    output: tuple[OutputItem, ...] = ()
    previous_response_id: str | None = None
    conversation: ConversationRef | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool = True
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ToolChoice = "auto"
    text: TextConfig
    reasoning: ReasoningConfig | None = None
    truncation: Literal["disabled"] = "disabled"
    temperature: float
    top_p: float
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    store: bool
    service_tier: Literal["default"] = "default"
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    usage: Usage = Usage()


class DeletedResponse(Struct, frozen=True, kw_only=True):
    """What is left of a stored response."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Struct, frozen=True, kw_only=True):
    """The count of ``POST /v1/responses/input_tokens``."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
