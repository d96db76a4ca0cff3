"""What a server keeps, as clients see it. Every body is checked strictly, errors for their envelope."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from support.published import item_list_differences, object_differences
from support.served import body_of, checked_error, checked_response

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    import httpx
    from support.published import Json
    from support.served import Served, ServerClient

CALL: Json = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": "{}"}
CALL_OUTPUT: Json = {"type": "function_call_output", "call_id": "c1", "output": "found it"}

PAGE_KEYS = {"object", "data", "first_id", "last_id", "has_more"}


DIALOGUE_ROWS = (
    ScriptRow(when="think", emit=("<think>", "hm", "</think>", "\n\n", "Done")),
    ScriptRow(when="fail", emit=("a",), then="raise"),
    ScriptRow(when="cut", emit=("a", "b"), then="length"),
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(when="one", emit=("eins",)),
    ScriptRow(when="two", emit=("zwei",)),
    ScriptRow(when="three", emit=("drei",)),
    ScriptRow(when="found it", emit=("Good",)),
    ScriptRow(emit=("ok",)),
)
"""A model that ends in every way there is, and otherwise says something short."""


class StoredState:
    """Responses and conversations by their ids."""

    def __init__(self, server: ServerClient) -> None:
        self._client = server.client

    # Responses

    async def response(self, response_id: str) -> Json:
        """A response object, which has to be there."""
        return checked_response(await self._send("GET", f"/v1/responses/{response_id}"))

    async def delete(self, response_id: str) -> None:
        """Delete a response, which has to be there."""
        reply = await self._send("DELETE", f"/v1/responses/{response_id}")
        assert reply.json() == {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, response_id: str) -> Json:
        """Cancel a response, which has to be there."""
        return checked_response(await self._send("POST", f"/v1/responses/{response_id}/cancel"))

    async def input_items(self, response_id: str, **query: Any) -> Json:
        """A page of the items that its request brought."""
        return checked_page(await self._send("GET", f"/v1/responses/{response_id}/input_items", query=query))

    async def count(self, **fields: Any) -> int:
        """The tokens of the prompt that a create request would have."""
        counted = checked_object(await self._send("POST", "/v1/responses/input_tokens", body_of(fields)))
        tokens: int = counted["input_tokens"]
        return tokens

    # Conversations

    async def create_conversation(self, **fields: Any) -> Json:
        """A new conversation."""
        return checked_object(await self._send("POST", "/v1/conversations", fields))

    async def conversation(self, conversation_id: str) -> Json:
        """A conversation, which has to be there."""
        return checked_object(await self._send("GET", f"/v1/conversations/{conversation_id}"))

    async def update_conversation(self, conversation_id: str, metadata: dict[str, str]) -> Json:
        """Change its metadata."""
        body = {"metadata": metadata}
        return checked_object(await self._send("POST", f"/v1/conversations/{conversation_id}", body))

    async def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation, which has to be there."""
        deleted = checked_object(await self._send("DELETE", f"/v1/conversations/{conversation_id}"))
        assert deleted == {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    async def add_items(self, conversation_id: str, *items: Json) -> list[Json]:
        """Append items; returns them as they are listed."""
        path = f"/v1/conversations/{conversation_id}/items"
        page = checked_page(await self._send("POST", path, {"items": items}))
        assert not page["has_more"]
        data: list[Json] = page["data"]
        return data

    async def items(self, conversation_id: str, **query: Any) -> Json:
        """A page of its items."""
        path = f"/v1/conversations/{conversation_id}/items"
        return checked_page(await self._send("GET", path, query=query))

    async def all_items(self, conversation_id: str) -> list[Json]:
        """All items of a conversation of at most 100, oldest first."""
        page = await self.items(conversation_id, order="asc", limit=100)
        assert not page["has_more"]
        data: list[Json] = page["data"]
        return data

    async def item(self, conversation_id: str, item_id: str) -> Json:
        """One of its items, which has to be there."""
        reply = await self._send("GET", f"/v1/conversations/{conversation_id}/items/{item_id}")
        item: Json = reply.json()
        check_items([item])
        return item

    async def delete_item(self, conversation_id: str, item_id: str) -> Json:
        """Take out one of its items; returns the conversation."""
        path = f"/v1/conversations/{conversation_id}/items/{item_id}"
        return checked_object(await self._send("DELETE", path))

    # Refusals

    async def refusal(
        self, method: str, path: str, body: Json | None = None, *, status: int = 400, **query: Any
    ) -> Json:
        """The error object of a request that has to end with this status."""
        reply = await self._client.request(method, path, json=body, params=query)
        assert reply.status_code == status, f"{reply.status_code} {reply.text}"
        error = checked_error(reply)
        assert error["type"] == "invalid_request_error"
        return error

    async def assert_unknown(self, response_id: str) -> None:
        """Fail unless nothing tells that there ever was such a response."""
        path = f"/v1/responses/{response_id}"
        for method, target in (
            ("GET", path),
            ("DELETE", path),
            ("POST", f"{path}/cancel"),
            ("GET", f"{path}/input_items"),
        ):
            error = await self.refusal(method, target, status=404)
            assert (error["code"], error["param"]) == ("response_not_found", None)
        continued = body_of({"previous_response_id": response_id})
        error = await self.refusal("POST", "/v1/responses", continued)
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")

    async def assert_no_conversation(self, conversation_id: str) -> None:
        """Fail unless nothing tells that there ever was such a conversation."""
        path = f"/v1/conversations/{conversation_id}"
        item = {"type": "message", "role": "user", "content": "hi"}
        for method, target, body in (
            ("GET", path, None),
            ("POST", path, {"metadata": {}}),
            ("DELETE", path, None),
            ("GET", f"{path}/items", None),
            ("POST", f"{path}/items", {"items": [item]}),
            ("GET", f"{path}/items/msg_1", None),
            ("DELETE", f"{path}/items/msg_1", None),
        ):
            error = await self.refusal(method, target, body, status=404)
            assert (error["code"], error["param"]) == ("conversation_not_found", None)

    async def _send(
        self, method: str, path: str, body: Json | None = None, *, query: Json | None = None
    ) -> httpx.Response:
        reply = await self._client.request(method, path, json=body, params=query)
        assert reply.status_code == 200, f"{reply.status_code} {reply.text}"
        assert reply.headers["content-type"] == "application/json"
        return reply


def checked_object(reply: httpx.Response) -> Json:
    """A conversation, the deletion of one or a count of tokens, after a strict check."""
    value: Json = reply.json()
    differences = object_differences(value)
    assert not differences, differences
    return value


def checked_page(reply: httpx.Response) -> Json:
    """A page of items, after a strict check."""
    page: Json = reply.json()
    assert page.keys() == PAGE_KEYS
    assert page["object"] == "list"
    ids = [item["id"] for item in page["data"]]
    assert len(set(ids)) == len(ids)
    assert [page["first_id"], page["last_id"]] == ([ids[0], ids[-1]] if ids else ["", ""])
    check_items(page["data"])
    return page


def check_items(items: list[Json]) -> None:
    """Check items as they are listed."""
    page = {"object": "list", "data": items, "first_id": "", "last_id": "", "has_more": False}
    differences = item_list_differences(page)
    assert not differences, differences


def said(items: list[Json]) -> list[str]:
    """What messages say, as "role: text"."""
    return [f"{item['role']}: {''.join(part['text'] for part in item['content'])}" for item in items]


def turns(served: Served, number: int = -1) -> list[str]:
    """A prompt that the engine got, by default the last one, as "role: text" for each turn."""
    prompt = served.engine.prompts()[number]
    found = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", prompt, re.DOTALL)
    return [f"{role}: {text}" for role, text in found]


async def answer(served: Served, given: str | list[Json], *, stream: bool, **fields: Any) -> Json:
    """Create a response, as a stream or not; returns the final object."""
    if not stream:
        return await served.create(input=given, **fields)
    response: Json = (await served.stream(input=given, **fields))[-1]["response"]
    return response


def user(text: str) -> Json:
    """A message."""
    return {"type": "message", "role": "user", "content": text}


def reference(item: Json) -> Json:
    """A reference to an item."""
    return {"type": "item_reference", "id": item["id"]}
