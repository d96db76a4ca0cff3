"""The bodies of ``/v1/conversations``, as requests and as answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mlxcel_trio.protocol.items import InputItem


class CreateConversation(Struct, frozen=True, kw_only=True):
    """A new conversation, with up to 20 items to begin with."""

    items: list[InputItem] | None = None
    metadata: dict[str, str] | None = None


class UpdateConversation(Struct, frozen=True, kw_only=True):
    """New metadata in place of what there was."""

    metadata: dict[str, str] | None = None


class CreateItems(Struct, frozen=True, kw_only=True):
    """Up to 20 items to append."""

    items: list[InputItem] | None = None


class Conversation(Struct, frozen=True, kw_only=True):
    """A conversation without its items; ``created_at`` is in Unix seconds."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = {}


class DeletedConversation(Struct, frozen=True, kw_only=True):
    """What is left of a conversation."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True
