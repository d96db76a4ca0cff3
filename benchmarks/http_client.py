"""An HTTP/1.1 client that costs little CPU and hands over every piece of a body as it arrives."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_RECEIVE_BYTES = 64 * 1024


class HttpConnection:
    """One connection to a server, for one request at a time."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._protocol = h11.Connection(h11.CLIENT)

    async def send(self, method: str, path: str, body: bytes = b"") -> None:
        """Send a request with a JSON body; then :meth:`receive` until ``None``."""
        headers = [
            ("Host", self._host),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
        ]
        request = h11.Request(method=method, target=path, headers=headers)
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        await self._stream.send_all(b"".join(self._protocol.send(part) or b"" for part in parts))

    async def receive(self) -> bytes | None:
        """The next piece of the answer's body, ``None`` at its end; then another request may be sent.

        :raises RuntimeError: the status is not 200, or the server closed the connection.
        """
        while True:
            event = self._protocol.next_event()
            match event:
                case h11.NEED_DATA:
                    self._protocol.receive_data(await self._stream.receive_some(_RECEIVE_BYTES))
                case h11.Response(status_code=status) if status != 200:
                    raise RuntimeError(f"{self._host} answered with status {status}: {await self._rest()!r}")
                case h11.ConnectionClosed():
                    raise RuntimeError(f"{self._host} closed the connection instead of answering")
                case h11.Data(data=data):
                    return bytes(data)
                case h11.EndOfMessage():
                    if self._protocol.our_state is h11.DONE:
                        self._protocol.start_next_cycle()
                    return None

    async def _rest(self) -> bytes:
        body = b""
        while (piece := await self.receive()) is not None:
            body += piece
        return body


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[HttpConnection]:
    """A connection to the server at ``url``, closed with the block."""
    address = urlsplit(url)
    assert address.hostname is not None
    stream = await trio.open_tcp_stream(address.hostname, address.port or 80)
    async with stream:
        yield HttpConnection(stream, address.netloc)
