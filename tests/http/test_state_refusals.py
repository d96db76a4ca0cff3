"""What is refused on the paths of stored state, and which ids get through to the use cases."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs
from support.fake_state import Call
from support.http_server import serving
from support.state_routes import CONVERSATION_ROUTES, ROUTES, store_of

from mlxcel_trio.errors import InvalidRequestError, NotFoundError
from mlxcel_trio.protocol.conversations import CreateConversation, CreateItems, UpdateConversation

if TYPE_CHECKING:
    from support.state_routes import Route

ORIGIN = {"Origin": "http://localhost:5173"}

each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")


@each_route
async def test_an_error_of_a_use_case(route: Route) -> None:
    async with serving() as server:
        for error, status in (
            (NotFoundError("Gone.", code="response_not_found"), 404),
            (InvalidRequestError("No.", param="limit", code="store_disabled"), 400),
        ):
            store_of(server, route).refusal = error
            reply = await server.fetch(route.method, route.path, headers=ORIGIN, body=route.body)
            assert reply.status == status
            assert reply.error == {
                "message": error.message,
                "type": "invalid_request_error",
                "param": error.param,
                "code": error.code,
            }
            assert reply.headers["access-control-allow-origin"] == ORIGIN["Origin"]
            assert reply.headers["x-request-id"].startswith("req_")


@each_route
async def test_a_use_case_that_breaks_is_a_500_that_tells_nothing(route: Route) -> None:
    async with serving() as server:
        store_of(server, route).refusal = RuntimeError("secret")
        with capture_logs() as logs:
            reply = await server.fetch(route.method, route.path, headers=ORIGIN, body=route.body)
        assert (reply.status, reply.error["code"]) == (500, "server_error")
        assert b"secret" not in reply.body
        assert reply.headers["access-control-allow-origin"] == ORIGIN["Origin"]
        assert "secret" in str([line.get("exc_info") for line in logs])
        await server.assert_alive()


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true", "stream"),
        ("stream=True", "stream"),
        ("stream=1", "stream"),
        ("stream=yes", "stream"),
        ("stream=", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=false&starting_after=0", "starting_after"),
        ("stream=true&starting_after=3", "stream"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_response_cannot_be_streamed_again(prefix: str, query: str, param: str) -> None:
    async with serving() as server:
        reply = await server.fetch("GET", f"{prefix}/responses/resp_1?{query}", headers=ORIGIN)
        assert (reply.status, reply.error["param"], reply.error["code"]) == (400, param, None)
        assert reply.headers["access-control-allow-origin"] == ORIGIN["Origin"]
        assert not server.stored.calls


@pytest.mark.parametrize(
    "query",
    ["", "stream=false", "stream=False", "stream=0", "include[]=message.output_text.logprobs", "include=a&b"],
)
async def test_other_parameters_of_a_retrieval_are_fine(query: str) -> None:
    async with serving() as server:
        assert (await server.fetch("GET", f"/v1/responses/resp_1?{query}")).status == 200
        assert len(server.stored.calls) == 1


BODY_ROUTES = [route for route in CONVERSATION_ROUTES if route.method == "POST"]
each_body_route = pytest.mark.parametrize("route", BODY_ROUTES, ids=lambda route: route.call)


@each_body_route
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"null", None),
        (b'"text"', None),
        (b" ", None),
        (b"\xff", None),
        (b'{"metadata": {"a": "\xff"}, "items": [{"role": "\xff"}]}', None),
        (b"[" * 100_000, None),
        (b'{"metadata": {"a": 1}, "items": 1}', "metadata|items"),
        (b'{"metadata": [], "items": {}}', "metadata|items"),
        (b'{"items": [{"role": 1}], "metadata": 1}', "metadata|items[0].role"),
    ],
)
async def test_a_body_that_is_not_one_is_400(route: Route, body: bytes, param: str | None) -> None:
    async with serving() as server:
        reply = await server.fetch("POST", route.path, headers=ORIGIN, body=body)
        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"
        assert reply.error["param"] in ([None] if param is None else param.split("|"))
        assert reply.headers["access-control-allow-origin"] == ORIGIN["Origin"]
        assert not server.conversations.calls


@each_body_route
async def test_no_body_is_an_empty_object(route: Route) -> None:
    async with serving() as server:
        for headers in ({}, {"Content-Length": "0", "Content-Type": "application/json"}):
            await server.fetch("POST", route.path, headers=headers)
        await server.fetch("POST", route.path, body=b"{}")
        first, second, third = server.conversations.calls
        assert first == second == third
        assert first.arguments[-1] in (CreateConversation(), UpdateConversation(), CreateItems())


@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/responses/input_tokens"])
@pytest.mark.parametrize(
    ("body", "param"), [(b"", None), (b"{", None), (b'{"input": 1}', "input"), (b'{"input":[1]}', "input[0]")]
)
async def test_a_body_of_input_tokens_that_is_not_one_is_400(
    path: str, body: bytes, param: str | None
) -> None:
    async with serving() as server:
        reply = await server.fetch("POST", path, body=body)
        assert (reply.status, reply.error["param"]) == (400, param)
        assert not server.responses.counted


@each_body_route
async def test_a_body_is_decompressed_and_bounded(route: Route) -> None:
    async with serving(max_body_bytes=1000) as server:
        packed = gzip.compress(route.body)
        reply = await server.fetch("POST", route.path, headers={"Content-Encoding": "gzip"}, body=packed)
        assert reply.status == 200
        assert server.conversations.calls[0].arguments == route.arguments
        packed = gzip.compress(route.body + b" " * 1000)
        for headers, body in (({"Content-Encoding": "gzip"}, packed), ({}, b" " * 1001)):
            reply = await server.fetch("POST", route.path, headers=headers, body=body)
            assert (reply.status, reply.error["code"]) == (413, "request_too_large")
        reply = await server.fetch("POST", route.path, headers={"Content-Encoding": "br"}, body=b"{}")
        assert reply.status == 415
        assert len(server.conversations.calls) == 1


# Ids

ODD_IDS = [
    ".",
    "..",
    "...",
    "a b",
    "a+b",
    "%",
    "a%2Fb",
    "a?b",
    "a#b",
    "a;b=c",
    "~",
    "\x00",
    "\n",
    "\x7f",
    "é",
    "\N{MOTOR SCOOTER}",
    "<script>",
    "'\"",
    "{id}",
    "resp_" + "a" * 2000,
]


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_an_id_with_odd_characters_arrives_as_it_was_meant(odd: str) -> None:
    target = quote(odd, safe="")
    async with serving() as server:
        for path in ("/v1/responses", "/responses", "/v1/conversations"):
            assert (await server.fetch("GET", f"{path}/{target}")).status == 200
        assert (await server.fetch("POST", f"/v1/responses/{target}/cancel")).status == 200
        assert (await server.fetch("GET", f"/v1/conversations/c/items/{target}")).status == 200
        assert {call.arguments[-1] for call in server.stored.calls} == {odd}
        assert [call.arguments[-1] for call in server.conversations.calls] == [odd, odd]


@pytest.mark.parametrize("target", ["", "/", "a%2Fb", "a/b", "a/cancel/", "a/b/c", "%2F", "a//cancel"])
async def test_a_slash_is_not_part_of_an_id(target: str) -> None:
    async with serving() as server:
        for path in ("/v1/responses", "/responses", "/v1/conversations"):
            reply = await server.fetch("GET", f"{path}/{target}")
            assert reply.status in (404, 405)
            assert reply.error["code"] is None
        assert not server.stored.calls
        assert not server.conversations.calls


async def test_bytes_that_are_no_text_are_some_id() -> None:
    async with serving() as server:
        assert (await server.fetch("GET", "/v1/responses/%ff%fe")).status == 200
        assert server.stored.calls == [Call("retrieve", None, ("\ufffd\ufffd",))]
