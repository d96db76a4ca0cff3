"""The paths of stored state: each calls its use case with the owner, the ids and what was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fake_responses import INPUT_TOKENS, finished
from support.fake_state import Call
from support.http_server import CREATE, serving
from support.state_routes import ROUTES, store_of

from mlxcel_trio.errors import InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from support.http_server import Server
    from support.state_routes import Route

ORIGIN = {"Origin": "http://localhost:5173"}

each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")


# What gets to the use cases


@each_route
async def test_a_route_calls_its_use_case_and_sends_what_that_says(route: Route) -> None:
    async with serving() as server:
        reply = await server.fetch(route.method, route.path, body=route.body)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.body == route.answer
        assert store_of(server, route).calls == [Call(route.call, None, route.arguments)]
        assert len(server.stored.calls) + len(server.conversations.calls) == 1


@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/responses/input_tokens"])
async def test_input_tokens(path: str) -> None:
    async with serving() as server:
        reply = await server.fetch("POST", path, body=b'{"input": "Hi"}')
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.json == {"object": "response.input_tokens", "input_tokens": INPUT_TOKENS}
        ((request, owner),) = server.responses.counted
        assert (request.model, request.input, owner) == (None, "Hi", None)
        server.responses.refusal = InvalidRequestError("No.", param="input")
        reply = await server.fetch("POST", path, body=CREATE)
        assert (reply.status, reply.error["param"]) == (400, "input")


@pytest.mark.parametrize("path", ["/v1/responses/resp_1/input_items", "/v1/conversations/conv_1/items"])
async def test_the_parameters_of_a_page_are_passed_on(path: str) -> None:
    async with serving() as server:
        query = "order=asc&limit=7&after=msg%2F1&limit=8&include[]=message.output_text.logprobs&x"
        assert (await server.fetch("GET", f"{path}?{query}")).status == 200
        ((_, _, (_, parameters)),) = [*server.stored.calls, *server.conversations.calls]
        assert isinstance(parameters, dict)
        assert {name: parameters.get(name) for name in ("order", "limit", "after")} == {
            "order": "asc",
            "limit": "7",
            "after": "msg/1",
        }


@pytest.mark.parametrize("path", ["/conversations", "/conversations/conv_1", "/conversations/conv_1/items"])
async def test_conversations_have_no_alias_without_a_version(path: str) -> None:
    async with serving() as server:
        for method in ("GET", "POST"):
            assert (await server.fetch(method, path, body=b"{}")).status == 404
        assert not server.conversations.calls


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 10_000])
async def test_what_needs_no_body_does_not_look_at_one(body: bytes) -> None:
    """The SDKs send cancel with an empty body, some proxies send one with DELETE."""
    async with serving() as server, server.connect() as client:
        for method, path in (
            ("POST", "/v1/responses/resp_1/cancel"),
            ("DELETE", "/v1/responses/resp_1"),
            ("DELETE", "/v1/conversations/conv_1"),
        ):
            await client.send(method, path, body=body)
            assert (await client.reply()).status == 200
        await client.send("GET", "/health")
        assert (await client.reply()).status == 200, "the connection is still of use"


# Owners


async def owners_seen(server: Server, key: str) -> set[str | None]:
    """The owners that the use cases are given for every route with one API key."""
    headers = {"Authorization": f"Bearer {key}"}
    for calls in (server.stored.calls, server.conversations.calls, server.responses.counted):
        calls.clear()
    for route in ROUTES:
        assert (await server.fetch(route.method, route.path, headers=headers, body=route.body)).status == 200
    async with server.connect() as client:
        await client.send("POST", "/v1/responses", headers=headers, body=CREATE)
        run = await server.responses.next_run()
        run.result.send_nowait(finished())
        await client.reply()
    await server.fetch("POST", "/v1/responses/input_tokens", headers=headers, body=CREATE)
    ((_, counted_for),) = server.responses.counted
    calls = [*server.stored.calls, *server.conversations.calls]
    assert len(calls) == len(ROUTES)
    return {run.owner, counted_for, *(call.owner for call in calls)}


async def test_the_owner_stands_for_the_key_and_does_not_tell_it() -> None:
    async with serving(api_keys=["sesame", "barley"]) as server:
        (first,) = await owners_seen(server, "sesame")
        (second,) = await owners_seen(server, "barley")
        (again,) = await owners_seen(server, "sesame")
    assert first is not None
    assert second is not None
    assert first == again != second
    assert len(first) == len(second) == 64
    assert "sesame" not in first
    assert "barley" not in second


async def test_one_key_is_one_owner_however_it_is_written() -> None:
    async with serving(api_keys=["sesame"]) as server:
        for authorization in ("Bearer sesame", "bearer  sesame"):
            headers = {"Authorization": authorization}
            assert (await server.fetch("GET", "/v1/responses/resp_1", headers=headers)).status == 200
        assert len({call.owner for call in server.stored.calls}) == 1


async def test_without_keys_there_is_one_owner_whatever_is_sent() -> None:
    async with serving() as server:
        assert await owners_seen(server, "sk-no-auth") == {None}


@each_route
async def test_without_a_key_nothing_is_told(route: Route) -> None:
    async with serving(api_keys=["sesame"]) as server:
        for headers in ({}, {"Authorization": "Bearer other"}):
            reply = await server.fetch(route.method, route.path, headers=headers, body=route.body)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert not store_of(server, route).calls


# Methods


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/responses/input_tokens", {"POST", "GET", "HEAD", "DELETE"}),
        ("/responses/resp_1", {"GET", "HEAD", "DELETE"}),
        ("/responses/resp_1/cancel", {"POST"}),
        ("/responses/resp_1/input_items", {"GET", "HEAD"}),
        ("/v1/conversations", {"POST"}),
        ("/v1/conversations/conv_1", {"GET", "HEAD", "POST", "DELETE"}),
        ("/v1/conversations/conv_1/items", {"GET", "HEAD", "POST"}),
        ("/v1/conversations/conv_1/items/msg_1", {"GET", "HEAD", "DELETE"}),
    ],
)
async def test_a_wrong_method_is_405(path: str, allowed: set[str]) -> None:
    paths = [path] if path.startswith("/v1") else [path, f"/v1{path}"]
    async with serving() as server:
        for target in paths:
            for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "BREW"} - allowed:
                reply = await server.fetch(method, target, headers=ORIGIN)
                assert reply.status == 405
                assert set(reply.headers["allow"].split(", ")) == allowed | {"OPTIONS"}
                assert reply.headers["access-control-allow-origin"] == ORIGIN["Origin"]
                assert method == "HEAD" or reply.error["type"] == "invalid_request_error"
        assert not server.stored.calls
        assert not server.conversations.calls


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "GET"])
async def test_head_is_get_without_a_body(route: Route) -> None:
    async with serving() as server, server.connect() as client:
        await client.send("HEAD", route.path)
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["content-length"] == str(len(route.answer))
        store_of(server, route).refusal = NotFoundError("No.", code="response_not_found")
        await client.send("HEAD", route.path)
        assert ((await client.reply()).status, reply.body) == (404, b"")
        await client.send("GET", "/health")
        assert (await client.reply()).status == 200


@each_route
async def test_a_preflight(route: Route) -> None:
    async with serving(api_keys=["sesame"]) as server:
        headers = ORIGIN | {"Access-Control-Request-Method": route.method}
        reply = await server.fetch("OPTIONS", route.path, headers=headers)
        assert reply.status == 204
        assert route.method in reply.headers["access-control-allow-methods"].split(", ")
        assert not store_of(server, route).calls
