"""A client that goes away cancels its run, at whatever point it goes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs
from support.fake_responses import opening
from support.fake_state import fake_use_cases
from support.http_server import CREATE, STREAM, Client, Server, serving, serving_app

from mlxcel_trio.http.app import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from quart import Response


async def close(client: Client) -> None:
    await client.stream.aclose()


async def half_close(client: Client) -> None:
    await client.stream.send_eof()


async def reset(client: Client) -> None:
    await client.reset()


each_way_to_leave = pytest.mark.parametrize("leave", [close, half_close, reset])


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as running:
        yield running


@asynccontextmanager
async def requesting(server: Server, body: bytes, more: bytes = b"") -> AsyncIterator[Client]:
    """A client that has sent a create request, and ``more`` behind it."""
    async with server.connect() as client:
        await client.send("POST", "/v1/responses", body=body)
        await client.stream.send_all(more)
        yield client


@each_way_to_leave
async def test_while_the_body_is_sent(server: Server, leave: Callable[[Client], Awaitable[None]]) -> None:
    with capture_logs() as logs:
        async with server.connect() as client:
            await client.stream.send_all(
                b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
            )
            await leave(client)
            await client_is_forgotten(server)
    assert not server.responses.preparing.is_set()
    assert [line["complete"] for line in logs if "complete" in line] == [False]


async def client_is_forgotten(server: Server) -> None:
    """Wait until no request is being answered: the server stops at once."""
    server.shutdown.set()
    await server.stopped.wait()


@each_way_to_leave
async def test_while_the_request_is_prepared(
    server: Server, leave: Callable[[Client], Awaitable[None]]
) -> None:
    server.responses.gate = trio.Event()
    async with requesting(server, CREATE) as client:
        await server.responses.preparing.wait()
        await leave(client)
        await client_is_forgotten(server)


@pytest.mark.parametrize("body", [CREATE, STREAM], ids=["json", "stream"])
@each_way_to_leave
async def test_while_the_run_is_silent(
    server: Server, leave: Callable[[Client], Awaitable[None]], body: bytes
) -> None:
    with capture_logs() as logs:
        async with requesting(server, body) as client:
            run = await server.responses.next_run()
            await run.begun.wait()
            await leave(client)
            await run.left.wait()
        assert run.cancelled
        assert run.closed.is_set()
        await client_is_forgotten(server)
    (line,) = logs
    assert (line["event"], line["complete"], line["response_id"]) == ("request", False, "resp_1")


@each_way_to_leave
async def test_in_the_middle_of_a_stream(server: Server, leave: Callable[[Client], Awaitable[None]]) -> None:
    async with requesting(server, STREAM) as client:
        run = await server.responses.next_run()
        for event in opening():
            run.events.send_nowait(event)
        await client.head()
        await client.chunk()
        await leave(client)
        await run.left.wait()
        assert run.cancelled


@pytest.mark.parametrize("body", [CREATE, STREAM], ids=["json", "stream"])
@pytest.mark.parametrize(
    "more",
    [b"x", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", bytes(1024 * 1024)],
    ids=["byte", "request", "too much"],
)
@each_way_to_leave
async def test_behind_pipelined_bytes(
    server: Server, leave: Callable[[Client], Awaitable[None]], more: bytes, body: bytes
) -> None:
    """Fault 1 (d): the stock worker stops reading at a pipelined byte; it never sees the client go, the run
    goes on, and the descriptor stays open.
    """
    async with requesting(server, body, more) as client:
        run = await server.responses.next_run()
        await run.begun.wait()
        await leave(client)
        await run.left.wait()
        assert run.cancelled
        await client_is_forgotten(server)


async def test_after_the_answer_nothing_is_cancelled(server: Server) -> None:
    with capture_logs() as logs:
        async with requesting(server, CREATE) as client:
            run = await server.responses.next_run()
            run.result.send_nowait(opening()[0].response)  # type: ignore[attr-defined]
            await client.reply()
        await client_is_forgotten(server)
    assert not run.cancelled
    assert [line.get("complete", True) for line in logs] == [True]


async def test_a_client_that_leaves_before_the_body_starts_frees_its_place() -> None:
    """The run is admitted and never begins: what frees its place is the request's exit stack."""
    fakes = fake_use_cases()
    app = create_app(fakes.as_use_cases())
    held = trio.Event()

    @app.after_request
    async def hold(_: Response) -> Response:
        held.set()
        await trio.sleep_forever()
        raise AssertionError

    async with serving_app(app) as (port, shutdown, stopped):
        server = Server(port, shutdown, stopped, fakes)
        async with requesting(server, STREAM):
            run = await server.responses.next_run()
            await held.wait()
            assert not run.closed.is_set()
        await run.closed.wait()
        assert not run.begun.is_set()
