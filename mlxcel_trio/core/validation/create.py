"""From a create request to its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from mlxcel_trio.core.plan import CreatePlan
from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.core.validation.fields import (
    check_fields,
    read_adjustments,
    read_reasoning,
    read_sampling,
    read_stop,
    read_template_kwargs,
    wants_logprobs,
)
from mlxcel_trio.core.validation.items import read_input
from mlxcel_trio.core.validation.not_yet import refuse_unbuilt
from mlxcel_trio.core.validation.refusals import listed, missing, shown
from mlxcel_trio.core.validation.state import check_state, read_conversation
from mlxcel_trio.core.validation.text_format import read_text
from mlxcel_trio.core.validation.tools import read_tool_choice, read_tools
from mlxcel_trio.errors import InvalidRequestError

if TYPE_CHECKING:
    from mlxcel_trio.protocol.requests import CreateResponse


class ValidationContext(Struct, frozen=True):
    """What this server makes of requests.

    ``names`` maps every model name a request may use to the one that responses echo. With
    ``ignore_unsupported_tools`` tools that are no functions are dropped instead of refused.
    """

    names: Mapping[str, str]
    sampling: SamplingDefaults
    store_enabled: bool
    conversations_enabled: bool
    background_enabled: bool
    ignore_unsupported_tools: bool = False


def validate_create(request: CreateResponse, context: ValidationContext) -> CreatePlan:
    """Apply every default and every limit that needs neither engine nor store.

    The plan shares no memory with the request body. Pairing of calls and an empty dialogue are left to the
    caller, who knows the history: see :func:`~mlxcel_trio.core.dialogue.continue_dialogue`.

    :raises InvalidRequestError: ``param`` is the path of the first offending field.
    """
    model = _read_model(request.model, context.names)
    check_fields(request)
    check_state(
        request,
        store_enabled=context.store_enabled,
        conversations_enabled=context.conversations_enabled,
        background_enabled=context.background_enabled,
    )
    tools = read_tools(request.tools, ignore_unsupported=context.ignore_unsupported_tools)
    plan = CreatePlan(
        model=model,
        items=read_input(request.input),
        instructions=request.instructions,
        sampling=read_sampling(request, context.sampling),
        adjustments=read_adjustments(request),
        logprobs=wants_logprobs(request),
        max_output_tokens=request.max_output_tokens,
        stop=read_stop(request.stop),
        template_kwargs=read_template_kwargs(request),
        stream=bool(request.stream),
        store=request.store is not False and context.store_enabled,
        extends_conversation=request.store is not False and request.conversation is not None,
        background=bool(request.background),
        previous_response_id=request.previous_response_id,
        conversation=read_conversation(request.conversation),
        tools=tools,
        tool_choice=read_tool_choice(request.tool_choice, tools),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_tool_calls=request.max_tool_calls,
        text=read_text(request.text),
        reasoning=read_reasoning(request.reasoning),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        top_logprobs=request.top_logprobs or 0,
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        user=request.user,
    )
    if request.input is None and plan.previous_response_id is None and plan.conversation is None:
        raise missing("input", "a string or a list of items")
    refuse_unbuilt(request, plan)
    return plan


def _read_model(name: str | None, names: Mapping[str, str]) -> str:
    if name is not None and name in names:
        return names[name]
    problem = "'model' is missing." if name is None else f"No model {shown(name)} is loaded here."
    raise InvalidRequestError(f"{problem} Use one of {listed(names)}.", param="model", code="model_not_found")
