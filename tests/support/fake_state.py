"""The stores as the HTTP room sees them: they note what is asked and answer anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Raw
from support.fake_responses import FakeResponses, finished

from mlxcel_trio.http.usecases import UseCases
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.conversations import Conversation, DeletedConversation
from mlxcel_trio.protocol.lists import ItemList
from mlxcel_trio.protocol.responses import DeletedResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcel_trio.protocol.conversations import CreateConversation, CreateItems, UpdateConversation

ITEM = b'{"id":"msg_1","type":"message"}'
PAGE = ItemList(data=(Raw(ITEM),), first_id="msg_1", last_id="msg_1", has_more=False)


def conversation(conversation_id: str = "conv_1") -> bytes:
    """A conversation object, encoded."""
    return encode(Conversation(id=conversation_id, created_at=1_700_000_000))


class Call(NamedTuple):
    """A use case that was called, with the owner and what else it was given."""

    name: str
    owner: str | None
    arguments: tuple[object, ...]


class FakeStore:
    """Notes every call in ``calls``, and raises ``refusal`` where there is one."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.refusal: Exception | None = None

    def note(self, name: str, owner: str | None, *arguments: object) -> None:
        """Begin a call."""
        self.calls.append(Call(name, owner, arguments))
        if self.refusal is not None:
            raise self.refusal


class FakeStoredResponses(FakeStore):
    """Has every response that it is asked for."""

    def retrieve(self, owner: str | None, response_id: str) -> bytes:
        self.note("retrieve", owner, response_id)
        return encode(finished(response_id))

    def delete(self, owner: str | None, response_id: str) -> DeletedResponse:
        self.note("delete", owner, response_id)
        return DeletedResponse(id=response_id)

    def cancel(self, owner: str | None, response_id: str) -> bytes:
        self.note("cancel", owner, response_id)
        return encode(finished(response_id))

    def input_items(self, owner: str | None, response_id: str, parameters: Mapping[str, str]) -> ItemList:
        self.note("input_items", owner, response_id, dict(parameters))
        return PAGE


class FakeConversations(FakeStore):
    """Has every conversation and item that it is asked for."""

    def create(self, owner: str | None, request: CreateConversation) -> bytes:
        self.note("create", owner, request)
        return conversation()

    def retrieve(self, owner: str | None, conversation_id: str) -> bytes:
        self.note("retrieve", owner, conversation_id)
        return conversation(conversation_id)

    def update(self, owner: str | None, conversation_id: str, request: UpdateConversation) -> bytes:
        self.note("update", owner, conversation_id, request)
        return conversation(conversation_id)

    def delete(self, owner: str | None, conversation_id: str) -> DeletedConversation:
        self.note("delete", owner, conversation_id)
        return DeletedConversation(id=conversation_id)

    def create_items(self, owner: str | None, conversation_id: str, request: CreateItems) -> ItemList:
        self.note("create_items", owner, conversation_id, request)
        return PAGE

    def list_items(self, owner: str | None, conversation_id: str, parameters: Mapping[str, str]) -> ItemList:
        self.note("list_items", owner, conversation_id, dict(parameters))
        return PAGE

    def retrieve_item(self, owner: str | None, conversation_id: str, item_id: str) -> bytes:
        self.note("retrieve_item", owner, conversation_id, item_id)
        return ITEM

    def delete_item(self, owner: str | None, conversation_id: str, item_id: str) -> bytes:
        self.note("delete_item", owner, conversation_id, item_id)
        return conversation(conversation_id)


class FakeUseCases(NamedTuple):
    """All that an application needs."""

    responses: FakeResponses
    stored: FakeStoredResponses
    conversations: FakeConversations

    def as_use_cases(self) -> UseCases:
        """The same, as an application takes them."""
        return UseCases(self.responses, self.stored, self.conversations)


def fake_use_cases() -> FakeUseCases:
    """New ones."""
    return FakeUseCases(FakeResponses(), FakeStoredResponses(), FakeConversations())
