"""The least that can answer the same requests with the same bytes: h11 on trio, no checks, no limits."""

from __future__ import annotations

from functools import partial

import h11
import trio

from benchmarks.http_cost.answers import FINISHED, FakeEngine
from mlxcel_trio.protocol.codec import decode, encode
from mlxcel_trio.protocol.events import TERMINAL_EVENTS, Event
from mlxcel_trio.protocol.requests import CreateResponse

_RECEIVE_BYTES = 64 * 1024


async def serve_bare(engine: FakeEngine, *, task_status: trio.TaskStatus[str]) -> None:
    """Serve until cancelled; the URL is reported through ``task_status``."""
    async with trio.open_nursery() as nursery:
        handler = partial(_serve_connection, engine)
        (listener,) = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
        task_status.started("http://{}:{}".format(*listener.socket.getsockname()))


async def _serve_connection(engine: FakeEngine, stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    while (body := await _read_request(connection, stream)) is not None:
        request = decode(body, CreateResponse)
        if request.stream:
            await _send_events(connection, stream, engine, request)
        else:
            await _send_json(connection, stream, encode(FINISHED))
        connection.start_next_cycle()


async def _read_request(connection: h11.Connection, stream: trio.SocketStream) -> bytes | None:
    """The body of the next request; ``None`` when the client has left."""
    body = b""
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
            case h11.Data(data=data):
                body += data
            case h11.EndOfMessage():
                return body
            case h11.ConnectionClosed():
                return None


async def _send_json(connection: h11.Connection, stream: trio.SocketStream, body: bytes) -> None:
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    head = h11.Response(status_code=200, headers=headers)
    await _send(connection, stream, head, h11.Data(data=body), h11.EndOfMessage())


async def _send_events(
    connection: h11.Connection, stream: trio.SocketStream, engine: FakeEngine, request: CreateResponse
) -> None:
    headers = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]
    await _send(connection, stream, h11.Response(status_code=200, headers=headers))
    with engine.events(request) as events:
        ended = False
        while not ended:
            waiting = [await events.receive(), *_all_that_wait(events)]
            await _send(connection, stream, h11.Data(data=b"".join(map(_frame, waiting))))
            ended = isinstance(waiting[-1], TERMINAL_EVENTS)
    await _send(connection, stream, h11.Data(data=b"data: [DONE]\n\n"), h11.EndOfMessage())


def _all_that_wait(events: trio.MemoryReceiveChannel[Event]) -> list[Event]:
    return [events.receive_nowait() for _ in range(events.statistics().current_buffer_used)]


def _frame(event: Event) -> bytes:
    kind: object = type(event).__struct_config__.tag
    return b"event: %b\ndata: %b\n\n" % (str(kind).encode(), encode(event))


async def _send(
    connection: h11.Connection,
    stream: trio.SocketStream,
    *parts: h11.Response | h11.Data | h11.EndOfMessage,
) -> None:
    await stream.send_all(b"".join(connection.send(part) or b"" for part in parts))
