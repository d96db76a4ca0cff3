"""What a single connection does: bytes that killed the stock worker, keep-alive, pipelining, and patience."""

from __future__ import annotations

import json

import h11
import pytest
import trio
from structlog.testing import capture_logs
from support.fake_responses import completed, delta, finished, opening
from support.http_server import CREATE, STREAM, Client, serving

from mlxcel_trio.http.http1 import Http1Protocol
from mlxcel_trio.http.worker import WorkerLimits

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def statuses(data: bytes) -> list[int]:
    """The status codes of the responses in ``data``, which must hold nothing but whole responses."""
    found = []
    http = h11.Connection(h11.CLIENT)
    http.receive_data(data)
    while True:
        http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        http.send(h11.EndOfMessage())
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            assert event is not h11.NEED_DATA, data
            if isinstance(event, h11.Response):
                found.append(event.status_code)
        if http.their_state is not h11.DONE or not http.trailing_data[0]:
            assert not http.trailing_data[0]
            return found
        http.start_next_cycle()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (GET + b"Upgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n", [200]),
        (
            GET + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
            [200],
        ),
        (GET + WEBSOCKET, [200]),
        (GET + WEBSOCKET + b"x", [200]),
        (b"GET /nope HTTP/1.1\r\nHost: x\r\n" + WEBSOCKET + b"\x81\x00", [404]),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), [505]),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", [505]),
        (b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\nx", [404]),
    ],
    ids=["h2c", "real h2c", "websocket", "websocket + byte", "no route", "h2", "2.0", "connect"],
)
async def test_nothing_switches_the_protocol(data: bytes, expected: list[int]) -> None:
    """Faults 1 (a) and (b): on the stock worker the first request ends the server with ``binascii.Error`` and
    the fourth with ``LocalProtocolError``, each escaping through the server's nursery.
    """
    async with serving() as server:
        async with server.connect() as client:
            await client.stream.send_all(data)
            await client.stream.send_all(b"")
            head = await first_response(client)
            assert [head] == expected
        await server.assert_alive()


async def first_response(client: Client) -> int:
    """The status of the first response on the wire."""
    received = b""
    while b"\r\n" not in received:
        received += await client.stream.receive_some()
    return int(received.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000, 431),
    ],
)
async def test_malformed_http_is_answered_with_the_envelope(data: bytes, status: int) -> None:
    async with serving() as server:
        head, _, body = (await server.exchange(data)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"content-type: application/json" in head
        assert b"connection: close" in head
        assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}
        await server.assert_alive()


async def test_a_malformed_body_of_a_head_request_just_ends_the_connection() -> None:
    """The answer to HEAD has no body, so h11 lets no envelope through."""
    async with serving() as server:
        data = b"HEAD /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        answer = await server.exchange(data)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 200 ")
        await server.assert_alive()


async def test_a_failure_in_one_connection_is_logged_and_kept_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 1: whatever escapes a connection on the stock worker cancels the nursery of the server."""

    async def fail(self: Http1Protocol, event: h11.Request) -> None:
        raise RuntimeError("a fault\nof the protocol")

    async with serving() as server, server.connect() as other:
        await other.send("POST", "/v1/responses", body=CREATE)
        run = await server.responses.next_run()
        with capture_logs() as logs, monkeypatch.context() as patch:
            patch.setattr(Http1Protocol, "_check_protocol", fail)
            assert await server.exchange(GET + b"\r\n") == b""
        (line,) = logs
        assert (line["event"], line["log_level"]) == ("connection_failed", "warning")
        assert line["reason"] == r"RuntimeError('a fault\nof the protocol')"
        run.result.send_nowait(finished())
        assert (await other.reply()).status == 200


async def test_a_connection_is_used_again() -> None:
    async with serving() as server, server.connect() as client:
        for _ in range(5):
            await client.send("GET", "/v1/models")
            assert (await client.reply()).status == 200
            await client.send("POST", "/v1/responses", body=CREATE)
            run = await server.responses.next_run()
            run.result.send_nowait(finished())
            assert (await client.reply()).status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /health",
    ],
)
async def test_connection_close_is_honoured(head: bytes) -> None:
    """Fault 2: the stock worker cancels itself before it closes; the client waits for the end forever."""
    async with serving() as server:
        answer = await server.exchange(head)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()


async def test_an_idle_connection_ends_after_the_keep_alive_timeout() -> None:
    """Fault 2: on the stock worker the timer is never started again after an answer."""
    limits = WorkerLimits(keep_alive_timeout=0.05, header_timeout=60)
    async with serving(limits=limits) as server, server.connect() as client:
        await client.send("GET", "/health")
        await client.reply()
        assert await client.rest() == b""


@pytest.mark.parametrize("data", [b"G", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_header_that_does_not_come_ends_the_connection(data: bytes) -> None:
    limits = WorkerLimits(keep_alive_timeout=60, header_timeout=0.05)
    async with serving(limits=limits) as server, server.connect() as client:
        await client.send("GET", "/health")
        await client.reply()
        await client.stream.send_all(data)
        assert await client.rest() == b""
        assert await server.exchange(data) == b""


async def test_no_timeout_counts_while_a_request_is_answered() -> None:
    limits = WorkerLimits(
        keep_alive_timeout=0.02, header_timeout=0.02, write_timeout=0.02, linger_timeout=0.02
    )
    async with serving(limits=limits) as server, server.connect() as client:
        await client.send("POST", "/v1/responses", body=STREAM)
        run = await server.responses.next_run()
        for event in opening():
            await trio.sleep(0.05)  # longer than every limit: the silence is the subject
            run.events.send_nowait(event)
        run.events.send_nowait(completed(2))
        assert (await client.reply()).body.endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("size", [1, 17, 100_000])
async def test_pipelined_requests_are_answered_in_order(size: int) -> None:
    requests = [
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(CREATE), CREATE),
        GET + b"\r\n",
        b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{]",
        b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ]
    data = b"".join(requests)
    async with serving() as server, server.connect() as client, trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            for start in range(0, len(data), size):
                await client.stream.send_all(data[start : start + size])

        run = await server.responses.next_run()
        run.result.send_nowait(finished())
        assert statuses(await client.rest()) == [200, 200, 404, 400, 200]


async def test_too_much_behind_a_request_costs_the_later_ones_only() -> None:
    async with serving() as server, server.connect() as client:
        await client.send("POST", "/v1/responses", body=CREATE)
        run = await server.responses.next_run()
        await run.begun.wait()
        await client.stream.send_all(5000 * (GET + b"\r\n"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        run.result.send_nowait(finished())
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await client.rest() == b""


async def test_a_reader_that_stalls_is_cut_by_the_write_timeout() -> None:
    """Fault 3: the stock worker sends shielded and without a timeout, so nothing ends this connection."""
    limits = WorkerLimits(write_timeout=0.1)
    async with serving(limits=limits) as server, server.connect() as client:
        await client.send("POST", "/v1/responses", body=STREAM)
        run = await server.responses.next_run()
        run.events.send_nowait(delta(0, "x" * 32 * 1024 * 1024))
        await run.left.wait()
        assert run.cancelled
        await server.assert_alive()


async def test_a_slow_reader_that_makes_progress_is_not_cut() -> None:
    limits = WorkerLimits(write_timeout=0.5)
    async with serving(limits=limits) as server, server.connect() as client:
        await client.send("POST", "/v1/responses", body=STREAM)
        run = await server.responses.next_run()
        run.events.send_nowait(delta(0, "x" * 16 * 1024 * 1024))
        run.events.send_nowait(completed(1))
        await client.head()
        size = 0
        while size < 16 * 1024 * 1024:
            await trio.sleep(0.01)  # the slowness is the subject
            size += len(await client.stream.receive_some(256 * 1024))
        await run.left.wait()
        assert not run.cancelled
