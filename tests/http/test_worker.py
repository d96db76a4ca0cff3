"""The server as a whole: its sockets, its cap, and its shutdown."""

from __future__ import annotations

import math
import socket
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from support.fake_responses import completed, delta, finished, opening
from support.fake_state import fake_use_cases
from support.http_server import CREATE, STREAM, open_descriptors, serving

from mlxcel_trio.errors import ConfigurationError
from mlxcel_trio.http.app import create_app
from mlxcel_trio.http.worker import (
    WorkerLimits,
    _accept_one,
    _notice_vanished_peer,
    open_listeners,
    serve_http,
)

if TYPE_CHECKING:
    from quart_trio import QuartTrio


def fake_app() -> QuartTrio:
    return create_app(fake_use_cases().as_use_cases())


async def start(nursery: trio.Nursery, host: str, port: int = 0) -> str:
    """A server in ``nursery``; its URL."""
    app = fake_app()
    url: str = await nursery.start(partial(serve_http, app, host, port, shutdown=trio.Event()))
    return url


async def test_port_0_is_reported_as_the_port_that_was_picked() -> None:
    async with trio.open_nursery() as nursery:
        url = await start(nursery, "127.0.0.1")
        assert url.startswith("http://127.0.0.1:")
        assert int(url.rpartition(":")[2]) > 0
        nursery.cancel_scope.cancel()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def test_ipv6() -> None:
    async with trio.open_nursery() as nursery:
        if has_ipv6():
            url = await start(nursery, "::1")
            assert url.startswith("http://[::1]:")
            stream = await trio.open_tcp_stream("::1", int(url.rpartition(":")[2]))
            await stream.aclose()
        else:
            with pytest.raises(ConfigurationError, match=r"::1.*--host"):
                await start(nursery, "::1")
        nursery.cancel_scope.cancel()


async def test_a_name_is_listened_on_at_all_its_addresses() -> None:
    """Clients try ``::1`` and 127.0.0.1 for localhost in an order of their own."""
    listeners = await open_listeners("localhost", 0, 5)
    names = [listener.socket.getsockname() for listener in listeners]
    for listener in listeners:
        await listener.aclose()
    assert {name[1] for name in names} == {names[0][1]}
    assert ("127.0.0.1" in {name[0] for name in names}) or has_ipv6()


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("no-such-host.invalid", "no-such-host.invalid"),
        ("a..b", "not a host name"),
        ("192.0.2.1", "192.0.2.1"),
    ],
)
async def test_an_address_that_cannot_be_had(host: str, reason: str) -> None:
    before = open_descriptors()
    with pytest.raises(ConfigurationError, match=reason) as caught:
        await serve_http(fake_app(), host, 0, shutdown=trio.Event())
    assert "--host" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert open_descriptors() == before


async def test_a_busy_port() -> None:
    async with serving() as server:
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{server.port}.*--port") as caught:
            await serve_http(fake_app(), "127.0.0.1", server.port, shutdown=trio.Event())
        assert "\n" not in str(caught.value)
        await server.assert_alive()


async def test_the_port_of_a_server_that_stopped_is_free() -> None:
    async with serving() as server, server.connect() as client:
        await client.send("GET", "/health", headers={"Connection": "close"})
        await client.reply()
        server.shutdown.set()
        await server.stopped.wait()
        async with trio.open_nursery() as nursery:
            assert (await start(nursery, "127.0.0.1", server.port)).endswith(str(server.port))
            nursery.cancel_scope.cancel()


async def test_two_servers_in_one_process() -> None:
    async with serving(api_keys=["key"]) as first, serving() as second:
        assert (await first.fetch("GET", "/v1/models")).status == 401
        assert (await second.fetch("GET", "/v1/models")).status == 200
        first.shutdown.set()
        await first.stopped.wait()
        await second.assert_alive()


async def test_a_connection_over_the_cap_waits_for_a_place() -> None:
    async with serving(limits=WorkerLimits(max_connections=2)) as server:
        async with server.connect() as waiting:
            async with server.connect() as first, server.connect():
                await first.send("GET", "/health")
                await first.reply()
            await waiting.send("GET", "/health")
            assert (await waiting.reply()).status == 200
        async with server.connect() as first, server.connect() as second, server.connect() as third:
            for client in (first, second, third):
                await client.send("GET", "/health")
            await first.reply()
            await second.reply()
            with trio.move_on_after(0.05) as no_answer:
                await third.head()
            assert no_answer.cancelled_caught
            await first.stream.aclose()
            assert (await third.head()).status_code == 200


class ExhaustedListener:
    """Fails as accept() does when the process has no descriptor left, and then recovers."""

    def __init__(self, errors: list[OSError]) -> None:
        self.errors = errors

    async def accept(self) -> str:
        if self.errors:
            raise self.errors.pop()
        return "stream"


async def test_accepting_goes_on_after_the_machine_was_exhausted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    listener = ExhaustedListener([OSError(24, "Too many open files"), OSError(12, "Out of memory")])
    assert await _accept_one(listener) == "stream"  # type: ignore[arg-type,comparison-overlap]


async def test_accepting_ends_when_the_listener_is_broken() -> None:
    with pytest.raises(OSError, match="Bad"):
        await _accept_one(ExhaustedListener([OSError(9, "Bad file descriptor")]))  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "seconds"), [(30.0, 30), (0.01, 1), (math.inf, 3600)])
async def test_the_kernel_is_told_to_notice_a_vanished_peer(given: float, seconds: int) -> None:
    async with serving() as server, server.connect() as client:
        _notice_vanished_peer(client.stream, given)
        assert client.stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert client.stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * seconds


async def test_shutdown_with_idle_connections_ends_at_once() -> None:
    """Fault 2: the stock worker keeps answered connections and takes the whole grace period, 60 s here."""
    limits = WorkerLimits(graceful_timeout=60, keep_alive_timeout=60, header_timeout=60)
    async with (
        serving(limits=limits) as server,
        server.connect() as used,
        server.connect() as fresh,
        server.connect() as half_sent,
    ):
        await used.send("GET", "/health")
        await used.reply()
        await half_sent.stream.send_all(b"GET / HTTP/1.1\r\n")
        server.shutdown.set()
        assert await used.rest() == await fresh.rest() == await half_sent.rest() == b""
        await server.stopped.wait()


async def test_shutdown_lets_requests_finish_and_takes_no_more() -> None:
    async with serving(limits=WorkerLimits(graceful_timeout=60)) as server:
        async with server.connect() as json_client, server.connect() as stream_client:
            await json_client.send("POST", "/v1/responses", body=CREATE)
            json_run = await server.responses.next_run()
            await stream_client.send("POST", "/v1/responses", body=STREAM)
            stream_run = await server.responses.next_run()
            for event in opening():
                stream_run.events.send_nowait(event)
            await stream_client.head()
            server.shutdown.set()
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(OSError, match="connect"):
                await trio.open_tcp_stream("127.0.0.1", server.port)
            json_run.result.send_nowait(finished())
            reply = await json_client.reply()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert await json_client.rest() == b""
            stream_run.events.send_nowait(completed(2))
            body = b""
            while chunk := await stream_client.chunk():
                body += chunk
            assert body.endswith(b"[DONE]\n\n")
            assert await stream_client.rest() == b""
            await server.stopped.wait()
        assert not json_run.cancelled
        assert not stream_run.cancelled


@pytest.mark.parametrize("body", [CREATE, STREAM], ids=["json", "stream"])
async def test_the_grace_period_ends_what_is_left(body: bytes) -> None:
    async with serving(limits=WorkerLimits(graceful_timeout=0.05)) as server, server.connect() as client:
        await client.send("POST", "/v1/responses", body=body)
        run = await server.responses.next_run()
        await run.begun.wait()
        server.shutdown.set()
        await server.stopped.wait()
        assert run.cancelled
        assert run.closed.is_set()


@pytest.mark.parametrize("how", ["grace", "cancel"])
async def test_a_reader_that_stalls_holds_up_neither_shutdown_nor_cancel(how: str) -> None:
    """Fault 3: the stock worker's shielded send lets neither through; SIGTERM hangs."""
    limits = WorkerLimits(graceful_timeout=0.05, write_timeout=3600)
    async with serving(limits=limits) as server, server.connect() as client:
        await client.send("POST", "/v1/responses", body=STREAM)
        run = await server.responses.next_run()
        run.events.send_nowait(delta(0, "x" * 32 * 1024 * 1024))
        await client.head()
        if how == "grace":
            server.shutdown.set()
            await server.stopped.wait()
            assert run.cancelled
    assert run.left.is_set()
    assert run.cancelled


async def test_no_descriptor_outlives_its_connection() -> None:
    async with serving() as server:
        await server.assert_alive()
        before = open_descriptors()
        for _ in range(50):
            await server.exchange(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET")
            async with server.connect() as client:
                await client.stream.send_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET")
        server.shutdown.set()
        await server.stopped.wait()
        assert open_descriptors() < before
