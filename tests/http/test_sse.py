"""Streams: the framing on the wire, seen by a client that reads it byte by byte."""

from __future__ import annotations

import json
import re

import h11
import pytest
from structlog.testing import capture_logs
from support.fake_responses import FakeRun, completed, delta, finished, opening, response
from support.http_server import STREAM, Client, serving

from mlxcel_trio.http.sse import WRITE_BYTES
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.events import Event, ResponseFailed, ResponseIncomplete

FRAME = re.compile(rb"event: (?P<event>[a-z_.]+)\ndata: (?P<data>\{[^\n]*\})\n\n")
DONE = b"data: [DONE]\n\n"


def frame(event: Event) -> bytes:
    """What goes over the wire for ``event``."""
    data = encode(event)
    return b"event: %s\ndata: %s\n\n" % (json.loads(data)["type"].encode(), data)


async def open_stream(client: Client) -> None:
    await client.send("POST", "/v1/responses", body=STREAM)


def emit(run: FakeRun, *events: Event) -> None:
    """Hand over events such that none is seen before all are there."""
    for event in events:
        run.events.send_nowait(event)


@pytest.mark.parametrize("receive_bytes", [1, 2, 7, 65536])
async def test_the_frames_of_a_stream(receive_bytes: int) -> None:
    async with serving() as server, server.connect(receive_bytes) as client:
        await open_stream(client)
        run = await server.responses.next_run()
        emit(run, *opening(), delta(2, "He\nllo "), delta(3, "wörld 🌍\r\n\n\u2028"), completed(4))
        head = await client.head()
        assert head.status_code == 200
        body = b""
        while chunk := await client.chunk():
            body += chunk
        assert body.endswith(DONE)
        frames = list(FRAME.finditer(body))
        assert b"".join(found[0] for found in frames) + DONE == body
        events = [json.loads(found["data"]) for found in frames]
        assert [event["type"].encode() for event in events] == [found["event"] for found in frames]
        assert [event["sequence_number"] for event in events] == [0, 1, 2, 3, 4]
        assert events[3]["delta"] == "wörld 🌍\r\n\n\u2028"
        assert events[4]["response"] == json.loads(encode(finished()))
        assert run.left.is_set()
        assert not run.cancelled


async def test_the_headers_keep_proxies_and_caches_away() -> None:
    async with serving() as server, server.connect() as client:
        await open_stream(client)
        run = await server.responses.next_run()
        emit(run, completed(0))
        reply = await client.reply()
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.headers["x-accel-buffering"] == "no"
        assert "content-length" not in reply.headers


@pytest.mark.parametrize(
    "terminal",
    [
        completed(0),
        ResponseIncomplete(sequence_number=0, response=response(status="incomplete")),
        ResponseFailed(sequence_number=0, response=response(status="failed")),
    ],
)
async def test_every_terminal_event_is_followed_by_done_and_nothing_else(terminal: Event) -> None:
    async with serving() as server, server.connect() as client:
        await open_stream(client)
        run = await server.responses.next_run()
        emit(run, terminal, delta(1, "too late"))
        assert (await client.reply()).body == frame(terminal) + DONE


async def test_events_that_wait_share_a_write_and_none_waits_for_another() -> None:
    async with serving() as server, server.connect() as client:
        await open_stream(client)
        run = await server.responses.next_run()
        emit(run, *opening())
        await client.head()
        assert await client.chunk() == b"".join(map(frame, opening()))
        emit(run, delta(2, "alone"))
        assert await client.chunk() == frame(delta(2, "alone"))
        emit(run, delta(3, "to"), delta(4, "gether"), completed(5))
        assert (
            await client.chunk()
            == frame(delta(3, "to")) + frame(delta(4, "gether")) + frame(completed(5)) + DONE
        )
        assert await client.chunk() == b""


async def test_a_backlog_goes_out_in_writes_of_whole_frames() -> None:
    events = [delta(number, "x" * 1000) for number in range(300)]
    async with serving() as server, server.connect() as client:
        await open_stream(client)
        run = await server.responses.next_run()
        emit(run, *events, completed(300))
        await client.head()
        chunks = []
        while chunk := await client.chunk():
            chunks.append(chunk)
        assert b"".join(chunks) == b"".join(map(frame, [*events, completed(300)])) + DONE
        assert len(chunks) < 8
        for chunk in chunks[:-1]:
            assert WRITE_BYTES <= len(chunk) < WRITE_BYTES + len(frame(events[-1]))
            assert FRAME.sub(b"", chunk) == b""


async def test_a_frame_over_the_write_size_is_one_chunk() -> None:
    async with serving() as server, server.connect() as client:
        await open_stream(client)
        run = await server.responses.next_run()
        emit(run, delta(0, "x" * 1_000_000), completed(1))
        await client.head()
        assert await client.chunk() == frame(delta(0, "x" * 1_000_000))
        assert await client.chunk() == frame(completed(1)) + DONE


@pytest.mark.parametrize("ping_interval", [None, 2.5])
async def test_the_ping_interval_reaches_the_run(ping_interval: float | None) -> None:
    async with serving(ping_interval=ping_interval) as server, server.connect() as client:
        await open_stream(client)
        run = await server.responses.next_run()
        await run.begun.wait()
        assert run.ping_interval == ping_interval


async def test_the_connection_is_kept_after_a_stream() -> None:
    async with serving() as server, server.connect() as client:
        for _ in range(3):
            await open_stream(client)
            run = await server.responses.next_run()
            emit(run, completed(0))
            assert (await client.reply()).body.endswith(DONE)


async def test_http_1_0_gets_the_bare_stream() -> None:
    async with serving() as server, server.connect() as client:
        length = b"Content-Length: %d" % len(STREAM)
        await client.stream.send_all(b"POST /responses HTTP/1.0\r\n" + length + b"\r\n\r\n" + STREAM)
        run = await server.responses.next_run()
        emit(run, completed(0))
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert body == frame(completed(0)) + DONE


async def test_a_run_that_ends_without_a_terminal_event_is_cut_not_completed() -> None:
    async with serving() as server, server.connect() as client:
        with capture_logs() as logs:
            await open_stream(client)
            run = await server.responses.next_run()
            emit(run, *opening())
            run.events.close()
            await client.head()
            await client.chunk()
            with pytest.raises(h11.RemoteProtocolError):
                await client.chunk()
        assert "terminal event" in str([line.get("exc_info") for line in logs])
        assert run.closed.is_set()
        await server.assert_alive()
