"""From a decoded request to a plan: every limit of the API that needs no engine and no store.

========================  ==========================================================
``create``                the order of the checks, and the plan
``conversations``         the bodies of conversations
``fields``                numbers, enums, metadata, stop strings, reasoning
``state``                 background, chains, conversations, context management
``items``                 input items and their parts
``pairing``               calls and their outputs
``tools``                 tools and tool choice
``text_format``           the output format
``schema``                JSON Schemas inside tools and formats
``free_form``             JSON values that the decoder left undecoded
``refusals``              the wording of errors
``not_yet``               features with a place in the API that are not built yet
========================  ==========================================================

A request is checked in two steps: :func:`validate_create` sees the request alone, and whoever adds the
history calls :func:`check_not_empty` and :func:`check_tool_pairing` on the whole.
"""

from mlxcel_trio.core.validation.create import ValidationContext, validate_create
from mlxcel_trio.core.validation.items import check_not_empty
from mlxcel_trio.core.validation.pairing import check_tool_pairing
from mlxcel_trio.core.validation.tools import unsupported_tools

__all__ = [
    "ValidationContext",
    "check_not_empty",
    "check_tool_pairing",
    "unsupported_tools",
    "validate_create",
]
