"""What a create request means once every default and limit has been applied."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mlxcel_trio.core.sampling import LogitAdjustments, SamplingParameters
from mlxcel_trio.protocol.items import InputItem
from mlxcel_trio.protocol.requests import ConversationRef
from mlxcel_trio.protocol.responses import ReasoningConfig
from mlxcel_trio.protocol.tools import FunctionTool, TextConfig, ToolChoice


class CreatePlan(Struct, frozen=True, kw_only=True):
    """A validated create request. Nothing in it points into the request body.

    ``items`` is the request's own input: a string has become one user message, every item has its type.
    ``logprobs`` asks for log probabilities, with ``top_logprobs`` alternatives each.
    ``extends_conversation``: the turn is appended to ``conversation``, also where responses are not stored.
    ``max_output_tokens`` is as asked for; the engine's context caps it later. The fields from ``tools`` on
    are echoed in the response.
    """

    model: str
    items: tuple[InputItem, ...]
    instructions: str | None
    sampling: SamplingParameters
    adjustments: LogitAdjustments
    logprobs: bool
    max_output_tokens: int | None
    stop: tuple[str, ...]
    template_kwargs: dict[str, Any]
    stream: bool
    store: bool
    extends_conversation: bool
    background: bool
    previous_response_id: str | None
    conversation: ConversationRef | None
    tools: tuple[FunctionTool, ...]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    max_tool_calls: int | None
    text: TextConfig
    reasoning: ReasoningConfig | None
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None
