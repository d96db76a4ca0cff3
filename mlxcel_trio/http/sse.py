"""Server-sent events: the body of a streamed response.

Frames are ``event: TYPE``, ``data: JSON`` and an empty line; after the terminal event comes ``data: [DONE]``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import trio
from quart.wrappers.response import ResponseBody
from quart_trio.wrappers import TrioResponse as Response

from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.events import TERMINAL_EVENTS, Event

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from mlxcel_trio.http.usecases import PreparedResponse

DONE = b"data: [DONE]\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}
WRITE_BYTES = 64 * 1024


def event_stream(prepared: PreparedResponse, ping_interval: float | None) -> Response:
    """The response whose body runs ``prepared`` and sends its events.

    ``ping_interval``: seconds of silence after which the run repeats its state; ``None`` for never.
    """
    return Response(EventStreamBody(prepared.open(ping_interval=ping_interval)), headers=dict(HEADERS))


class EventStreamBody(ResponseBody):
    """Frames of the events of ``run``, which is entered and left with the body.

    An async generator could not do this: its nursery would be open across a yield. One chunk holds whole
    frames only, and those of all events that wait already, up to about 64 KiB.
    """

    def __init__(self, run: AbstractAsyncContextManager[trio.MemoryReceiveChannel[Event]]) -> None:
        self._run = run
        self._ended = False

    async def __aenter__(self) -> EventStreamBody:
        self._events = await self._run.__aenter__()
        return self

    async def __aexit__(  # type: ignore[override]
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        tb: TracebackType | None,
    ) -> bool | None:
        return await self._run.__aexit__(exc_type, exc_value, tb)

    def __aiter__(self) -> EventStreamBody:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        try:
            chunk = self._frame(await self._events.receive())
        except trio.EndOfChannel:
            raise RuntimeError("The run ended without a terminal event.") from None
        while not self._ended and len(chunk) < WRITE_BYTES:
            try:
                chunk += self._frame(self._events.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                break
        return bytes(chunk)

    def _frame(self, event: Event) -> bytearray:
        frame = bytearray(_prefix(type(event)))
        frame += encode(event)
        frame += b"\n\n"
        if isinstance(event, TERMINAL_EVENTS):
            frame += DONE
            self._ended = True
        return frame


@cache
def _prefix(kind: type[Event]) -> bytes:
    return f"event: {kind.__struct_config__.tag}\ndata: ".encode()
