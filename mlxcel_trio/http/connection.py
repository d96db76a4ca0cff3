"""One client connection: bytes in, bytes out, and how long to wait for either.

::

    connection scope                        cancelled: the client is gone, stalls or is cut
     `- reader                              its deadline is what the connection waits for at most
     `- request task                        the app; one at a time

Whatever ends the reader ends the connection, and with it the request that is being answered. The client's end
of input counts as such an end, half-closed or not.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveEvent,
    ASGISendEvent,
    ConnectionState,
    LifespanState,
    Scope,
    WorkerContext,
)
from hypercorn.utils import parse_socket_addr
from msgspec import Struct

from mlxcel_trio.http.http1 import Http1Protocol
from mlxcel_trio.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config

log = get_logger(__name__)

RECEIVE_BYTES = 64 * 1024
WRITE_BYTES = 256 * 1024


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """What one connection may take; times in seconds, sizes in bytes.

    ``header_timeout``: from the first byte of a request, or from the connect, to the end of its header.
    ``keep_alive_timeout``: from an answer to the first byte of the next request. ``write_timeout``: for the
    client to take the next 256 KiB. ``linger_timeout``: for it to stop sending after an early answer.
    ``max_header_bytes``: one request's header. ``max_pipelined_bytes``: what is kept of later requests.
    """

    header_timeout: float = 10.0
    keep_alive_timeout: float = 5.0
    write_timeout: float = 30.0
    linger_timeout: float = 2.0
    max_header_bytes: int = 32 * 1024
    max_pipelined_bytes: int = 64 * 1024


class Connection:
    """Serves ``app`` on ``stream`` until either side ends it. Closing the stream is left to the caller."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        limits: ConnectionLimits,
        stream: trio.SocketStream,
    ) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._limits = limits
        self._stream = stream
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._sending = trio.Lock()
        self._answering = False
        self._between_requests = False
        self._finished = False

    async def run(self) -> None:
        """Serve. Cancellable throughout; raises what the protocol raises when it meets a fault of its own."""
        socket = self._stream.socket
        try:
            client = parse_socket_addr(socket.family, socket.getpeername())
        except OSError:
            return  # the client was gone before its turn came
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._protocol = Http1Protocol(
                    self._app,
                    self._config,
                    self._context,
                    _RequestTasks(nursery),
                    ConnectionState(LifespanState({})),
                    False,  # no TLS
                    client,
                    parse_socket_addr(socket.family, socket.getsockname()),
                    self._on_protocol_event,
                    receive=self._receive,
                    max_pipelined_bytes=self._limits.max_pipelined_bytes,
                )
                await self._read()
                self._scope.cancel()

    def end_if_idle(self) -> None:
        """End the connection unless a request is being answered."""
        if not self._answering:
            self._reading.cancel()

    async def _read(self) -> None:
        with self._reading:
            self._await_header()
            if self._context.terminated.is_set():
                self._reading.cancel()
            while data := await self._receive():
                if self._finished:
                    continue
                if self._between_requests:
                    self._await_header()
                await self._protocol.handle(RawData(data))

    async def _receive(self) -> bytes:
        """The next bytes; ``b""`` at the end of input, which also ends the connection."""
        data = b""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
        if not data:
            self._scope.cancel()
        return data

    async def _on_protocol_event(self, event: Event) -> None:
        match event:
            case RawData(data=data) if data:  # the end of a body of known length has no bytes
                await self._write(data)
            case Updated(idle=True):
                self._answering = False
                self._await_request()
            case Updated():
                self._answering = True
                self._wait_at_most(math.inf)
            case Closed():
                await self._finish()

    async def _write(self, data: bytes) -> None:
        """Write ``data``, or end the connection: after half a write nothing sensible can follow."""
        async with self._sending:
            try:
                for start in range(0, len(data), WRITE_BYTES):
                    with trio.fail_after(self._limits.write_timeout):
                        await self._stream.send_all(memoryview(data)[start : start + WRITE_BYTES])
            except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                self._scope.cancel()
            except trio.Cancelled:
                self._scope.cancel()
                raise

    async def _finish(self) -> None:
        """Say that nothing follows. Closing at once would take the answer from a client that still sends."""
        self._finished = True
        await self._protocol.handle(Closed())
        async with self._sending:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_eof()
        self._wait_at_most(self._limits.linger_timeout if self._protocol.has_unread_input else 0)

    def _await_request(self) -> None:
        if self._protocol.has_buffered_input:
            self._await_header()
        else:
            self._between_requests = True
            self._wait_at_most(self._limits.keep_alive_timeout)

    def _await_header(self) -> None:
        self._between_requests = False
        self._wait_at_most(self._limits.header_timeout)

    def _wait_at_most(self, seconds: float) -> None:
        self._reading.deadline = trio.current_time() + seconds


class _RequestTasks(TaskGroup):
    """Starts request tasks in the connection's nursery. An app that fails ends its request, no more."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = self._connection_tasks = nursery

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start ``app`` and return the function that hands it what the client sends."""
        to_app, from_client = trio.open_memory_channel[ASGIReceiveEvent](config.max_app_queue_size)

        async def put(event: ASGIReceiveEvent) -> None:
            with suppress(trio.BrokenResourceError):  # the app has returned without reading everything
                await to_app.send(event)

        async def run() -> None:
            async with from_client:
                try:
                    await app(scope, from_client.receive, send, trio.to_thread.run_sync, trio.from_thread.run)
                except* Exception as errors:
                    log.error("request_failed", exc_info=errors)
            await send(None)

        self._connection_tasks.start_soon(run)
        return put
