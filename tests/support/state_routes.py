"""Every path of stored state, and the use case behind it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from support.fake_responses import finished
from support.fake_state import ITEM, PAGE, conversation

from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.conversations import CreateConversation, CreateItems, UpdateConversation
from mlxcel_trio.protocol.items import InputItem

if TYPE_CHECKING:
    from support.fake_state import FakeStore
    from support.http_server import Server

MESSAGE = {"type": "message", "role": "user", "content": "hi"}
ITEMS = json.dumps({"items": [MESSAGE]}).encode()
METADATA = b'{"metadata": {"a": "b"}}'
READ_ITEM = InputItem(type="message", role="user", content="hi")


class Route(NamedTuple):
    """A path, the use case behind it and what that is given; ``answer`` is the body for it."""

    method: str
    path: str
    call: str
    arguments: tuple[object, ...]
    answer: bytes
    body: bytes = b""


RESPONSE_ROUTES = [
    Route("GET", "/responses/resp_1", "retrieve", ("resp_1",), encode(finished())),
    Route(
        "DELETE",
        "/responses/resp_1",
        "delete",
        ("resp_1",),
        b'{"id":"resp_1","object":"response","deleted":true}',
    ),
    Route("POST", "/responses/resp_1/cancel", "cancel", ("resp_1",), encode(finished())),
    Route("GET", "/responses/resp_1/input_items", "input_items", ("resp_1", {}), encode(PAGE)),
]
CONVERSATION_ROUTES = [
    Route(
        "POST",
        "/v1/conversations",
        "create",
        (CreateConversation(items=[READ_ITEM]),),
        conversation(),
        ITEMS,
    ),
    Route("GET", "/v1/conversations/conv_1", "retrieve", ("conv_1",), conversation()),
    Route(
        "POST",
        "/v1/conversations/conv_1",
        "update",
        ("conv_1", UpdateConversation(metadata={"a": "b"})),
        conversation(),
        METADATA,
    ),
    Route(
        "DELETE",
        "/v1/conversations/conv_1",
        "delete",
        ("conv_1",),
        b'{"id":"conv_1","object":"conversation.deleted","deleted":true}',
    ),
    Route(
        "POST",
        "/v1/conversations/conv_1/items",
        "create_items",
        ("conv_1", CreateItems(items=[READ_ITEM])),
        encode(PAGE),
        ITEMS,
    ),
    Route("GET", "/v1/conversations/conv_1/items", "list_items", ("conv_1", {}), encode(PAGE)),
    Route("GET", "/v1/conversations/conv_1/items/msg_1", "retrieve_item", ("conv_1", "msg_1"), ITEM),
    Route(
        "DELETE",
        "/v1/conversations/conv_1/items/msg_1",
        "delete_item",
        ("conv_1", "msg_1"),
        conversation(),
    ),
]
ROUTES = [
    *(route._replace(path=f"/v1{route.path}") for route in RESPONSE_ROUTES),
    *RESPONSE_ROUTES,
    *CONVERSATION_ROUTES,
]


def store_of(server: Server, route: Route) -> FakeStore:
    return server.stored if "responses" in route.path else server.conversations
