"""hypercorn's HTTP/1.1 protocol, made safe to face arbitrary bytes.

What differs from the original: no request can switch the protocol (h2c, prior-knowledge HTTP/2, websocket), a
pipelined request does not stop the connection from reading, and malformed HTTP is answered with our envelope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h11
import trio
from hypercorn.events import Closed, RawData
from hypercorn.protocol.events import Event, Response
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import EventWrapper

from mlxcel_trio.http.errors import malformed_answer
from mlxcel_trio.http.request_id import REQUEST_ID_HEADER, new_request_id
from mlxcel_trio.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = get_logger(__name__)

HTTP_VERSIONS = (b"1.0", b"1.1")
VERSION_NOT_SUPPORTED = 505


class Http1Protocol(H11Protocol):
    """One connection's requests, one after the other.

    The arguments are hypercorn's, but for ``receive``: it returns the connection's next bytes (``b""`` at the
    end) and is called while a pipelined request waits; ``max_pipelined_bytes`` is how much of that is kept.
    """

    def __init__(
        self, *args: Any, receive: Callable[[], Awaitable[bytes]], max_pipelined_bytes: int, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._receive = receive
        self._max_pipelined_bytes = max_pipelined_bytes
        self._overrun = False
        self.connection = _Http1(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)
        self.can_read = _PipelinePause(self._read_ahead)

    @property
    def has_buffered_input(self) -> bool:
        """Whether a part of the next request is here."""
        return bool(self.connection.trailing_data[0])

    @property
    def has_unread_input(self) -> bool:
        """Whether there is, or will be, input that no request handler takes."""
        state = self.connection.their_state
        return self._overrun or state in {h11.SEND_BODY, h11.ERROR} or self.has_buffered_input

    async def stream_send(self, event: Event) -> None:
        """Send a part of a response; announces the end of the connection where it is known."""
        if isinstance(event, Response) and self._is_last:
            event = Response(event.stream_id, [*event.headers, (b"connection", b"close")], event.status_code)
        await super().stream_send(event)

    @property
    def _is_last(self) -> bool:
        half_sent = self.connection.their_state in {h11.SEND_BODY, h11.ERROR}
        return self._overrun or half_sent or self.context.terminated.is_set()

    async def _check_protocol(self, event: h11.Request) -> None:
        """Switch to nothing; the original would go over to HTTP/2."""

    async def _create_stream(self, request: h11.Request) -> None:
        if request.http_version not in HTTP_VERSIONS:
            await self._send_error_response(VERSION_NOT_SUPPORTED)
            await self.send(Closed())
            return
        if any(name == b"upgrade" for name, _ in request.headers):
            # A server may ignore it (RFC 9110, 7.8); the original would start a websocket.
            request = h11.Request(
                method=request.method,
                target=request.target,
                headers=[header for header in request.headers if header[0] != b"upgrade"],
                http_version=request.http_version,
            )
        await super()._create_stream(request)

    async def _send_error_response(self, status_code: int) -> None:
        answer = malformed_answer(status_code)
        request_id = new_request_id()
        response = h11.Response(
            status_code=answer.status,
            headers=[
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(answer.body)),
                (b"connection", b"close"),
                (REQUEST_ID_HEADER, request_id.encode()),
                *self.config.response_headers("h11"),
            ],
        )
        log.info("malformed_request", status=answer.status, request_id=request_id)
        # In one go, so that a request which is being answered cannot write in between.
        events = (response, h11.Data(data=answer.body), h11.EndOfMessage())
        try:
            data = b"".join(self.connection.send(event) for event in events)
        except h11.LocalProtocolError:
            return  # it was a HEAD request, whose answer has no body: the connection just ends
        await self.send(RawData(data))

    async def _maybe_recycle(self) -> None:
        if not self._overrun:
            await super()._maybe_recycle()
            return
        await self._close_stream()
        await self.can_read.set()
        await self.send(Closed())

    async def _read_ahead(self) -> None:
        """Keep what is pipelined behind the running request, up to the limit, until input ends.

        Bytes over the limit are dropped, and the connection ends with the running request: its client has to
        send anew what was not answered (RFC 9112, 9.3.2).
        """
        room = self._max_pipelined_bytes - len(self.connection.trailing_data[0])
        while data := await self._receive():
            room -= len(data)
            self._overrun = self._overrun or room < 0
            if not self._overrun:
                self.connection.receive_data(data)


class _Http1(h11.Connection):
    """h11 that does not look at what follows a client's last request, where the original sees an error."""

    def receive_data(self, data: bytes) -> None:
        if self.their_state is not h11.MUST_CLOSE:
            super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        return h11.NEED_DATA if self.their_state is h11.MUST_CLOSE else super().next_event()


class _PipelinePause(EventWrapper):
    """What the reader waits for when a request is pipelined behind another: the turn of the next.

    The original wait keeps the reader from the socket, so that a client which goes away is not noticed.
    """

    def __init__(self, read_ahead: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._read_ahead = read_ahead

    async def wait(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_ahead)
            await super().wait()
            nursery.cancel_scope.cancel()
