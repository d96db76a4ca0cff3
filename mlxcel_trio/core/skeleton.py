"""The response object as it stands before anything is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from mlxcel_trio.protocol.responses import Response

if TYPE_CHECKING:
    from mlxcel_trio.core.plan import CreatePlan


def open_response(plan: CreatePlan, *, response_id: str, created_at: int) -> Response:
    """A response in progress without output that echoes its request.

    :param created_at: Unix seconds.
    """
    return Response(
        id=response_id,
        created_at=created_at,
        status="in_progress",
        background=True if plan.background else UNSET,
        instructions=plan.instructions,
        model=plan.model,
        previous_response_id=plan.previous_response_id,
        conversation=plan.conversation,
        max_output_tokens=plan.max_output_tokens,
        max_tool_calls=plan.max_tool_calls,
        parallel_tool_calls=plan.parallel_tool_calls,
        tools=plan.tools,
        tool_choice=plan.tool_choice,
        text=plan.text,
        reasoning=plan.reasoning,
        temperature=plan.sampling.temperature,
        top_p=plan.sampling.top_p,
        presence_penalty=plan.presence_penalty,
        frequency_penalty=plan.frequency_penalty,
        top_logprobs=plan.top_logprobs,
        store=plan.store,
        metadata=plan.metadata,
        safety_identifier=plan.safety_identifier,
        prompt_cache_key=plan.prompt_cache_key,
        user=plan.user,
    )
