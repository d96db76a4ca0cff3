"""A real server on a free port and clients that speak to its socket."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h11
import trio
from support.fake_state import fake_use_cases

from mlxcel_trio.http.app import create_app
from mlxcel_trio.http.worker import WorkerLimits, serve_http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hypercorn.typing import ASGIFramework
    from support.fake_responses import FakeResponses
    from support.fake_state import FakeConversations, FakeStoredResponses, FakeUseCases

LIMIT_SECONDS = 10
"""What no test may take; nothing waits for it in a test that passes."""

CREATE = b'{"model": "tiny", "input": "Hi"}'
STREAM = b'{"model": "tiny", "input": "Hi", "stream": true}'


class Reply(NamedTuple):
    """A whole response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error object, after a check of the envelope."""
        assert self.headers["content-type"] == "application/json"
        assert self.json.keys() == {"error"}
        assert self.json["error"].keys() == {"message", "type", "param", "code"}
        assert self.json["error"]["message"]
        return self.json["error"]


class Client:
    """One connection, read ``receive_bytes`` at a time."""

    def __init__(self, stream: trio.SocketStream, receive_bytes: int = 65536) -> None:
        self.stream = stream
        self._receive_bytes = receive_bytes
        self._http = h11.Connection(h11.CLIENT)

    async def send(
        self, method: str, target: str, *, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send a request; with a body its length is stated."""
        fields = {"Host": "test"} | ({"Content-Length": str(len(body))} if body else {}) | (headers or {})
        request = h11.Request(method=method, target=target, headers=list(fields.items()))
        data = self._http.send(request)
        data += self._http.send(h11.Data(data=body)) if body else b""
        await self.stream.send_all(data + self._http.send(h11.EndOfMessage()))

    async def next_event(self) -> h11.Event:
        """The next part of the response: head, data or end."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            try:
                self._http.receive_data(await self.stream.receive_some(self._receive_bytes))
            except trio.BrokenResourceError:
                self._http.receive_data(b"")
        assert isinstance(event, h11.Event)
        return event

    async def head(self) -> h11.Response:
        """The status line and headers."""
        while True:
            event = await self.next_event()
            if isinstance(event, h11.Response):
                return event
            assert isinstance(event, h11.InformationalResponse)

    async def chunk(self) -> bytes:
        """The next whole chunk of a stream, ``b""`` at its end.

        :raises h11.RemoteProtocolError: the answer was cut short.
        """
        chunk = b""
        while isinstance(event := await self.next_event(), h11.Data):
            chunk += event.data
            if event.chunk_end:
                return chunk
        assert isinstance(event, h11.EndOfMessage)
        return chunk

    async def reply(self) -> Reply:
        """The whole response; makes the connection ready for the next request."""
        head = await self.head()
        body = b""
        while isinstance(event := await self.next_event(), h11.Data):
            body += event.data
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return Reply(head.status_code, {k.decode(): v.decode() for k, v in head.headers}, body)

    async def rest(self) -> bytes:
        """What comes, unparsed, until the server ends the connection, be it by a reset."""
        received = b""
        with suppress(trio.BrokenResourceError):
            while data := await self.stream.receive_some():
                received += data
        return received

    async def reset(self) -> None:
        """Go away the hard way, with an RST."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.stream.aclose()


class Server(NamedTuple):
    """A running server. ``stopped`` is set when it has returned."""

    port: int
    shutdown: trio.Event
    stopped: trio.Event
    fakes: FakeUseCases

    @property
    def responses(self) -> FakeResponses:
        return self.fakes.responses

    @property
    def stored(self) -> FakeStoredResponses:
        return self.fakes.stored

    @property
    def conversations(self) -> FakeConversations:
        return self.fakes.conversations

    @asynccontextmanager
    async def connect(self, receive_bytes: int = 65536) -> AsyncIterator[Client]:
        """A connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            yield Client(stream, receive_bytes)

    async def fetch(
        self, method: str, target: str, *, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        """One request on a connection of its own."""
        async with self.connect() as client:
            await client.send(method, target, headers=headers, body=body)
            return await client.reply()

    async def exchange(self, data: bytes) -> bytes:
        """Send raw bytes and read until the server ends the connection."""
        async with self.connect() as client:
            await client.stream.send_all(data)
            return await client.rest()

    async def assert_alive(self) -> None:
        """Fail unless the server still answers."""
        assert (await self.fetch("GET", "/health")).status == 200


@asynccontextmanager
async def serving(
    *, limits: WorkerLimits | None = None, within: float = LIMIT_SECONDS, **options: Any
) -> AsyncIterator[Server]:
    """A server around fakes; ``options`` go to ``create_app``. Leaving cuts it; it may not fail."""
    fakes = fake_use_cases()
    async with serving_app(create_app(fakes.as_use_cases(), **options), limits, within=within) as (
        port,
        shutdown,
        stopped,
    ):
        yield Server(port, shutdown, stopped, fakes)


@asynccontextmanager
async def serving_app(
    app: ASGIFramework, limits: WorkerLimits | None = None, *, within: float = LIMIT_SECONDS
) -> AsyncIterator[tuple[int, trio.Event, trio.Event]]:
    """Any ASGI application on our worker, as port and the events for shutdown and end."""
    shutdown, stopped = trio.Event(), trio.Event()

    async def serve(*, task_status: trio.TaskStatus[str]) -> None:
        await serve_http(
            app, "127.0.0.1", 0, shutdown=shutdown, limits=limits or WorkerLimits(), task_status=task_status
        )
        stopped.set()

    with trio.fail_after(within):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve)
            yield int(url.rpartition(":")[2]), shutdown, stopped
            nursery.cancel_scope.cancel()


def open_descriptors() -> int:
    """How many descriptors this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
