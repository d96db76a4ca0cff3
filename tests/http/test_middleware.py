"""Who may call: browser origins and API keys; CORS headers on every answer."""

from __future__ import annotations

import pytest
from support.fake_responses import completed
from support.http_server import CREATE, STREAM, serving

ALLOW = "access-control-allow-origin"

LOOPBACK = [
    "http://localhost",
    "http://localhost:3000",
    "https://localhost:8443",
    "http://127.0.0.1:8080",
    "https://[::1]:1",
    "http://LOCALHOST:1",
]
FOREIGN = [
    "https://example.org",
    "null",
    "http://localhost.example.org",
    "http://127.0.0.1.example.org",
    "http://127.0.0.2",
    "http://localhost:3000/path",
    "http://user@localhost",
    "ftp://localhost",
    "localhost",
    "http://localhost:",
    "http://localhost:3000 http://example.org",
    "*",
]


@pytest.mark.parametrize("origin", LOOPBACK)
async def test_pages_on_this_machine_may_call(origin: str) -> None:
    async with serving() as server:
        reply = await server.fetch("GET", "/v1/models", headers={"Origin": origin})
        assert (reply.status, reply.headers[ALLOW], reply.headers["vary"]) == (200, origin, "Origin")
        assert "x-request-id" in reply.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_other_pages_may_not(origin: str, method: str) -> None:
    async with serving() as server:
        reply = await server.fetch(method, "/v1/responses", headers={"Origin": origin}, body=CREATE)
        assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")
        assert ALLOW not in reply.headers
        assert not server.responses.preparing.is_set()


async def test_without_an_origin_there_is_no_page() -> None:
    async with serving() as server:
        reply = await server.fetch("GET", "/v1/models")
        assert reply.status == 200
        assert ALLOW not in reply.headers


async def test_two_origins_are_both_checked() -> None:
    async with serving() as server:
        answer = await server.exchange(
            b"GET /health HTTP/1.0\r\nOrigin: http://localhost\r\nOrigin: https://example.org\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 403 ")


async def test_configured_origins_replace_the_default() -> None:
    async with serving(allowed_origins=["https://chat.example.org", "http://app:1/"]) as server:
        for origin, status in [
            ("https://chat.example.org", 200),
            ("https://CHAT.example.org", 200),
            ("http://app:1", 200),
            ("http://chat.example.org", 403),
            ("http://localhost", 403),
        ]:
            reply = await server.fetch("GET", "/v1/models", headers={"Origin": origin})
            assert (reply.status, reply.headers.get(ALLOW)) == (status, origin if status == 200 else None)


async def test_a_star_allows_every_page() -> None:
    async with serving(allowed_origins=["*"]) as server:
        reply = await server.fetch("GET", "/v1/models", headers={"Origin": "null"})
        assert (reply.status, reply.headers[ALLOW]) == (200, "null")


async def test_a_preflight_needs_no_key() -> None:
    async with serving(api_keys=["secret"]) as server:
        headers = {
            "Origin": "http://localhost:5173",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
        }
        reply = await server.fetch("OPTIONS", "/v1/responses", headers=headers)
        assert (reply.status, reply.body) == (204, b"")
        assert "content-type" not in reply.headers
        assert reply.headers[ALLOW] == "http://localhost:5173"
        assert reply.headers["access-control-allow-headers"] == headers["Access-Control-Request-Headers"]
        assert {"POST", "GET", "DELETE"} <= set(reply.headers["access-control-allow-methods"].split(", "))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("PUT", "/v1/responses", 405), ("POST", "/v1/responses", 400)],
)
async def test_errors_have_cors_headers(method: str, path: str, status: int) -> None:
    async with serving() as server:
        reply = await server.fetch(method, path, headers={"Origin": "http://localhost"})
        assert (reply.status, reply.headers[ALLOW]) == (status, "http://localhost")
        assert reply.error


async def test_streams_have_cors_headers() -> None:
    async with serving() as server, server.connect() as client:
        await client.send("POST", "/v1/responses", headers={"Origin": "http://localhost"}, body=STREAM)
        run = await server.responses.next_run()
        run.events.send_nowait(completed(0))
        assert (await client.reply()).headers[ALLOW] == "http://localhost"


@pytest.mark.parametrize("authorization", ["Bearer one", "Bearer two", "bearer two", "Bearer  two "])
async def test_each_configured_key_opens(authorization: str) -> None:
    async with serving(api_keys=["one", "two"]) as server:
        reply = await server.fetch("GET", "/v1/models", headers={"Authorization": authorization.strip()})
        assert reply.status == 200


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer three", "Bearer on", "Bearer onee", "Basic one", "one"],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/models"), ("POST", "/responses"), ("GET", "/nope")]
)
async def test_anything_else_is_401(authorization: str | None, method: str, path: str) -> None:
    async with serving(api_keys=["one", "two"]) as server:
        headers = {"Origin": "http://localhost"}
        if authorization is not None:
            headers["Authorization"] = authorization.strip()
        reply = await server.fetch(method, path, headers=headers, body=CREATE)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.headers[ALLOW] == "http://localhost"
        assert not server.responses.preparing.is_set()


async def test_a_key_of_odd_bytes_is_401() -> None:
    async with serving(api_keys=["one"]) as server:
        answer = await server.exchange(
            b"GET /v1/models HTTP/1.0\r\nAuthorization: Bearer \xff\xc3\xb6ne\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 401 ")


async def test_health_needs_no_key() -> None:
    async with serving(api_keys=["one"]) as server:
        assert (await server.fetch("GET", "/health")).status == 200


async def test_without_keys_any_key_is_fine() -> None:
    async with serving() as server:
        reply = await server.fetch("GET", "/v1/models", headers={"Authorization": "Bearer sk-no-auth"})
        assert reply.status == 200
