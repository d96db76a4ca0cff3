"""``/v1/conversations``. A handler decodes, calls one use case and encodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from mlxcel_trio.http.body import read_body
from mlxcel_trio.http.json_response import json_response
from mlxcel_trio.http.request import current_request
from mlxcel_trio.protocol.codec import decode
from mlxcel_trio.protocol.conversations import CreateConversation, CreateItems, UpdateConversation

if TYPE_CHECKING:
    from quart import Quart
    from quart_trio.wrappers import TrioResponse as Response

    from mlxcel_trio.http.usecases import Conversations

T = TypeVar("T", bound=Struct)


def add_conversation_routes(app: Quart, conversations: Conversations, *, max_body_bytes: int) -> None:
    """Mount every path of conversations. Errors are raised; ``http.errors`` answers them."""

    async def read(kind: type[T]) -> T:
        # No body at all is an empty object: nothing in one is required of every request.
        return decode(await read_body(current_request(), max_body_bytes) or b"{}", kind)

    @app.post("/v1/conversations")
    async def create_conversation() -> Response:
        return json_response(conversations.create(current_request().owner, await read(CreateConversation)))

    @app.get("/v1/conversations/<conversation_id>")
    async def retrieve_conversation(conversation_id: str) -> Response:
        return json_response(conversations.retrieve(current_request().owner, conversation_id))

    @app.post("/v1/conversations/<conversation_id>")
    async def update_conversation(conversation_id: str) -> Response:
        update = await read(UpdateConversation)
        return json_response(conversations.update(current_request().owner, conversation_id, update))

    @app.delete("/v1/conversations/<conversation_id>")
    async def delete_conversation(conversation_id: str) -> Response:
        return json_response(conversations.delete(current_request().owner, conversation_id))

    @app.post("/v1/conversations/<conversation_id>/items")
    async def create_items(conversation_id: str) -> Response:
        items = await read(CreateItems)
        return json_response(conversations.create_items(current_request().owner, conversation_id, items))

    @app.get("/v1/conversations/<conversation_id>/items")
    async def list_items(conversation_id: str) -> Response:
        request = current_request()
        return json_response(conversations.list_items(request.owner, conversation_id, request.args))

    @app.get("/v1/conversations/<conversation_id>/items/<item_id>")
    async def retrieve_item(conversation_id: str, item_id: str) -> Response:
        return json_response(conversations.retrieve_item(current_request().owner, conversation_id, item_id))

    @app.delete("/v1/conversations/<conversation_id>/items/<item_id>")
    async def delete_item(conversation_id: str, item_id: str) -> Response:
        return json_response(conversations.delete_item(current_request().owner, conversation_id, item_id))
