"""What the handlers need from the service room, as protocols: tests and embedders may bring their own.

``owner`` is whose state a request sees. Methods that return bytes return an object of the API, encoded.
Everything raises :class:`~mlxcel_trio.errors.ApiError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    import trio

    from mlxcel_trio.protocol.conversations import (
        CreateConversation,
        CreateItems,
        DeletedConversation,
        UpdateConversation,
    )
    from mlxcel_trio.protocol.events import Event
    from mlxcel_trio.protocol.lists import ItemList
    from mlxcel_trio.protocol.models import ModelList, ModelObject
    from mlxcel_trio.protocol.requests import CreateResponse
    from mlxcel_trio.protocol.responses import DeletedResponse, InputTokens, Response


class PreparedResponse(Protocol):
    """An admitted response. It holds a queue place until it has run or is closed."""

    @property
    def stream(self) -> bool:
        """Whether the client asked for events."""

    @property
    def background(self) -> bool:
        """Whether it is to be detached, instead of run or opened."""

    @property
    def response_id(self) -> str:
        """The id of the response, known from the start."""

    def detach(self) -> Response:
        """Let it run without the request from now on. Returns its object as it stands."""

    def close(self) -> None:
        """Free the queue place; idempotent."""

    def open(
        self, *, ping_interval: float | None
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Event]]:
        """Run while the block is open and yield the events; leaving cancels what still runs."""

    async def run(self) -> Response:
        """Run to the end. Raises :class:`~mlxcel_trio.errors.ApiError`."""


class Health(Protocol):
    """A msgspec struct, sent as it is."""

    @property
    def ok(self) -> bool:
        """Whether new work would be taken."""


class Responses(Protocol):
    """The use cases behind the routes."""

    async def prepare(self, request: CreateResponse, owner: str | None) -> PreparedResponse:
        """Validate and admit. Raises :class:`~mlxcel_trio.errors.ApiError` before anything is sent."""

    async def count_input_tokens(self, request: CreateResponse, owner: str | None) -> InputTokens:
        """The length of the prompt that a request would have. Raises as ``prepare``."""

    def models(self) -> ModelList:
        """Every listed model name."""

    def model(self, name: str) -> ModelObject:
        """One model name. Raises :class:`~mlxcel_trio.errors.NotFoundError`."""

    def health(self) -> Health:
        """The state of the engine."""


class StoredResponses(Protocol):
    """Responses by their ids."""

    def retrieve(self, owner: str | None, response_id: str) -> bytes:
        """The response object."""

    def delete(self, owner: str | None, response_id: str) -> DeletedResponse:
        """Forget a finished response."""

    def cancel(self, owner: str | None, response_id: str) -> bytes:
        """End a response if it has not ended; the response object."""

    def input_items(self, owner: str | None, response_id: str, parameters: Mapping[str, str]) -> ItemList:
        """A page of the items that its request brought."""


class Conversations(Protocol):
    """Conversations and their items."""

    def create(self, owner: str | None, request: CreateConversation) -> bytes:
        """A new conversation."""

    def retrieve(self, owner: str | None, conversation_id: str) -> bytes:
        """The conversation object."""

    def update(self, owner: str | None, conversation_id: str, request: UpdateConversation) -> bytes:
        """Change its metadata; the conversation object."""

    def delete(self, owner: str | None, conversation_id: str) -> DeletedConversation:
        """Forget it."""

    def create_items(self, owner: str | None, conversation_id: str, request: CreateItems) -> ItemList:
        """Append items."""

    def list_items(self, owner: str | None, conversation_id: str, parameters: Mapping[str, str]) -> ItemList:
        """A page of its items."""

    def retrieve_item(self, owner: str | None, conversation_id: str, item_id: str) -> bytes:
        """One of its items."""

    def delete_item(self, owner: str | None, conversation_id: str, item_id: str) -> bytes:
        """Take one of them out; the conversation object."""


class UseCases(NamedTuple):
    """All of them."""

    responses: Responses
    stored: StoredResponses
    conversations: Conversations
