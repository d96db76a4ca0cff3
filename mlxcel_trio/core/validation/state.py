"""Fields that tie a request to stored state: background, chains, conversations, context management."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlxcel_trio.core.validation.free_form import is_null
from mlxcel_trio.core.validation.refusals import check_choice, invalid, missing, shown
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.requests import ConversationRef

if TYPE_CHECKING:
    from mlxcel_trio.protocol.requests import ContextManagementEntry, CreateResponse

MAX_COMPACT_THRESHOLD = 100_000_000

_CONVERSATION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_state(
    request: CreateResponse, *, store_enabled: bool, conversations_enabled: bool, background_enabled: bool
) -> None:
    """Check what may not be combined, and what this server cannot keep.

    :raises InvalidRequestError: naming one of the fields.
    """
    if not is_null(request.prompt):
        raise invalid("prompt", "stored prompts are not supported. Send 'instructions' and 'input' instead.")
    if request.background and request.stream:
        raise invalid("background", "it cannot be combined with 'stream': true. Poll the response instead.")
    if request.background and not (store_enabled and background_enabled):
        raise InvalidRequestError(
            "Background mode is disabled on this server: --responses-background-max-jobs, "
            "--responses-store-max-entries or --responses-store-max-bytes is 0. Send the request without "
            "'background'.",
            param="background",
            code=None if store_enabled else "store_disabled",
        )
    if request.previous_response_id is not None:
        if request.conversation is not None:
            raise invalid(
                "conversation", "it cannot be combined with 'previous_response_id'. Send one of them."
            )
        if not store_enabled:
            raise InvalidRequestError(
                "'previous_response_id' needs the response store, which is disabled on this server. "
                "Send the whole history in 'input'.",
                param="previous_response_id",
                code="store_disabled",
            )
    if request.conversation is not None and not conversations_enabled:
        raise InvalidRequestError(
            "'conversation' needs the conversation store, which is disabled on this server. "
            "Send the whole history in 'input'.",
            param="conversation",
            code="store_disabled",
        )
    _check_context_management(request.context_management or [])


def read_conversation(conversation: str | ConversationRef | None) -> ConversationRef | None:
    """Both forms of ``conversation`` as one.

    :raises InvalidRequestError: the id is not 1 to 64 of the characters an id may have.
    """
    if conversation is None:
        return None
    path, conversation_id = (
        ("conversation", conversation)
        if isinstance(conversation, str)
        else ("conversation.id", conversation.id)
    )
    if not _CONVERSATION_ID.fullmatch(conversation_id):
        raise invalid(
            path,
            f"{shown(conversation_id)} is not a conversation id. Use 1 to 64 of A-Z, a-z, 0-9, '_', '-'.",
        )
    return ConversationRef(conversation_id)


def _check_context_management(entries: list[ContextManagementEntry]) -> None:
    if not entries:
        return
    if len(entries) > 1:
        raise invalid("context_management", f"{len(entries)} entries are too many. Send exactly one.")
    entry = entries[0]
    path = "context_management[0]"
    if entry.type is None:
        raise missing(f"{path}.type", "'compaction'")
    check_choice(f"{path}.type", entry.type, ("compaction",))
    if entry.compact_threshold is None:
        raise missing(f"{path}.compact_threshold", "the number of tokens from which to compact")
    if not 1 <= entry.compact_threshold <= MAX_COMPACT_THRESHOLD:
        raise invalid(f"{path}.compact_threshold", f"it is out of range. Use 1 to {MAX_COMPACT_THRESHOLD}.")
