"""Every path, method by method, and what each answer carries."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs
from support.fake_responses import MODEL, finished, response
from support.http_server import CREATE, STREAM, serving

from mlxcel_trio.errors import InvalidRequestError, RateLimitError, ServerOverloadedError
from mlxcel_trio.protocol.codec import encode


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/responses/", "/v1/responses?a=b"])
async def test_create_answers_with_the_final_object(path: str) -> None:
    async with serving() as server, server.connect() as client:
        await client.send("POST", path, body=CREATE)
        run = await server.responses.next_run()
        assert (run.request.model, run.request.input, run.stream) == ("tiny", "Hi", False)
        run.result.send_nowait(finished())
        reply = await client.reply()
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.body == encode(finished())
        assert run.closed.is_set()
        assert not run.cancelled


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_a_background_response_is_answered_as_it_stands_and_let_go(path: str) -> None:
    async with serving() as server, server.connect() as client:
        await client.send("POST", path, body=b'{"model": "tiny", "input": "Hi", "background": true}')
        run = await server.responses.next_run()
        reply = await client.reply()
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.body == encode(response(status="queued", background=True))
        server.shutdown.set()
        await server.stopped.wait()
        assert run.detached
        assert not run.begun.is_set()
        assert not run.closed.is_set(), "the end of the request is not the end of the job"


async def test_the_target_may_be_a_whole_url() -> None:
    async with serving() as server:
        assert (await server.fetch("GET", "http://other.example/v1/models")).status == 200


async def test_models() -> None:
    async with serving() as server:
        reply = await server.fetch("GET", "/v1/models")
        assert reply.json == {"object": "list", "data": [json.loads(encode(MODEL))]}


@pytest.mark.parametrize("name", ["org/tiny", "org%2Ftiny"])
async def test_a_model_name_may_hold_slashes(name: str) -> None:
    async with serving() as server:
        reply = await server.fetch("GET", f"/v1/models/{name}")
        assert (reply.status, reply.json["id"]) == (200, "org/tiny")


@pytest.mark.parametrize("name", ["other", "org", "org//tiny", "%00", "%ff"])
async def test_an_unknown_model_is_404(name: str) -> None:
    async with serving() as server:
        reply = await server.fetch("GET", f"/v1/models/{name}")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(("healthy", "status"), [(True, 200), (False, 503)])
async def test_health(healthy: bool, status: int) -> None:
    async with serving() as server:
        server.responses.healthy = healthy
        reply = await server.fetch("GET", "/health")
        assert (reply.status, reply.json) == (status, {"ok": healthy, "running": 0})


async def test_head_is_get_without_a_body() -> None:
    async with serving() as server, server.connect() as client:
        await client.send("HEAD", "/v1/models")
        assert (await client.reply()).body == b""
        await client.send("GET", "/v1/models")
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("path", ["/", "//", "/v1", "/v1/", "/v2/responses", "/%2e", "*", "?a"])
async def test_an_unknown_path_is_404(path: str) -> None:
    async with serving() as server:
        reply = await server.fetch("GET", path)
        assert reply.status == 404
        assert reply.error["type"] == "invalid_request_error"
        assert reply.error["code"] is None


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/responses", {"POST"}),
        ("PUT", "/responses", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("DELETE", "/v1/models/tiny", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("BREW", "/health", {"GET", "HEAD"}),
    ],
)
async def test_a_wrong_method_is_405(method: str, path: str, allowed: set[str]) -> None:
    async with serving() as server:
        reply = await server.fetch(method, path)
        assert reply.status == 405
        assert set(reply.headers["allow"].split(", ")) == allowed | {"OPTIONS"}
        assert all(name in reply.error["message"] for name in allowed)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b'{"input": [{"role": 1}]}', "input[0].role"),
        (b'{"temperature": "warm"}', "temperature"),
    ],
)
async def test_a_body_that_is_not_a_create_request_is_400(body: bytes, param: str | None) -> None:
    async with serving() as server:
        reply = await server.fetch("POST", "/v1/responses", body=body)
        assert (reply.status, reply.error["param"]) == (400, param)


@pytest.mark.parametrize("body", [CREATE, STREAM])
async def test_a_refusal_comes_before_anything_is_sent(body: bytes) -> None:
    async with serving() as server:
        server.responses.refusal = InvalidRequestError("No.", param="input", code="context_length_exceeded")
        reply = await server.fetch("POST", "/v1/responses", body=body)
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        server.responses.refusal = ServerOverloadedError("Full.")
        reply = await server.fetch("POST", "/v1/responses", body=body)
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        server.responses.refusal = RateLimitError("Too many jobs.")
        reply = await server.fetch("POST", "/v1/responses", body=body)
        assert (reply.status, reply.headers["retry-after"]) == (429, "10")


async def test_a_failure_inside_a_group_is_the_failure() -> None:
    async with serving() as server:
        server.responses.refusal = ExceptionGroup("nursery", [InvalidRequestError("No.", param="input")])
        reply = await server.fetch("POST", "/v1/responses", body=CREATE)
        assert (reply.status, reply.error["param"]) == (400, "input")


async def test_a_run_that_breaks_is_a_500_that_tells_nothing() -> None:
    async with serving() as server, server.connect() as client:
        await client.send("POST", "/v1/responses", body=CREATE)
        run = await server.responses.next_run()
        with capture_logs() as logs:
            run.result.send_nowait(RuntimeError("secret"))
            reply = await client.reply()
        assert (reply.status, reply.error["code"]) == (500, "server_error")
        assert b"secret" not in reply.body
        assert run.closed.is_set()
        failure = next(line for line in logs if line["event"] == "request_failed")
        assert "secret" in str(failure["exc_info"])
        await client.send("GET", "/health")
        assert (await client.reply()).status == 200


async def test_every_answer_has_a_request_id_of_its_own() -> None:
    async with serving(api_keys=["key"]) as server:
        replies = [await server.fetch(method, "/v1/models") for method in ("GET", "PUT", "OPTIONS")]
        ids = {reply.headers["x-request-id"] for reply in replies}
        ids.add((await server.fetch("GET", "/health")).headers["x-request-id"])
        malformed = await server.exchange(b"nonsense\r\n\r\n")
        ids.add(malformed.lower().split(b"x-request-id: ")[1].split(b"\r")[0].decode())
        assert len(ids) == 5
        assert all(id_.startswith("req_") and len(id_) == 36 for id_ in ids)


@pytest.mark.parametrize("host", ["[::", "a" * 70 + ".example", "x y", "\x7f", ""])
async def test_any_host_header_is_answered(host: str) -> None:
    async with serving() as server:
        answer = await server.exchange(f"GET /health HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))


async def test_one_log_line_per_request() -> None:
    async with serving() as server, server.connect() as client:
        with capture_logs() as logs:
            await client.send("POST", "/v1/responses?a=b", body=CREATE)
            run = await server.responses.next_run()
            run.result.send_nowait(finished(run.response_id))
            await client.reply()
            await client.send("GET", "/nope")
            await client.reply()
            server.shutdown.set()
            await server.stopped.wait()
    first, second = logs
    duration = first.pop("duration_ms")
    assert isinstance(duration, float)
    assert first == {
        "event": "request",
        "log_level": "info",
        "method": "POST",
        "path": "/v1/responses",
        "status": 200,
        "response_id": "resp_1",
    }
    assert (second["method"], second["path"], second["status"]) == ("GET", "/nope", 404)
    assert "response_id" not in second
