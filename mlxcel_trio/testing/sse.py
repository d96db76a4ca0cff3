"""Reading server-sent events, incrementally and strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator


class SseFrame(Struct, frozen=True):
    """One frame; ``event`` is empty for a frame with data alone, such as ``[DONE]``."""

    event: str
    data: str


class SseReader:
    """Splits a response body into frames, however it arrives.

    :raises ValueError: for bytes that this project's server would never send: an unknown field, a frame
        without data, or a body that ends inside a frame.
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[SseFrame]:
        """The frames that are complete now."""
        *frames, self._pending = (self._pending + data).split(b"\n\n")
        return [_frame(frame.decode()) for frame in frames]

    def finish(self) -> None:
        """The body has ended."""
        if self._pending:
            raise ValueError(f"the stream ends inside a frame: {self._pending[:80]!r}")


async def read_frames(chunks: AsyncIterable[bytes]) -> AsyncIterator[SseFrame]:
    """The frames of a body that comes in chunks, such as httpx's ``aiter_bytes()``."""
    reader = SseReader()
    async for chunk in chunks:
        for frame in reader.feed(chunk):
            yield frame
    reader.finish()


def _frame(text: str) -> SseFrame:
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        name, separator, value = line.partition(": ")
        if not separator or name not in ("event", "data") or name in fields:
            raise ValueError(f"unexpected line in a frame: {line[:80]!r}")
        fields[name] = value
    if "data" not in fields:
        raise ValueError(f"a frame without data: {text[:80]!r}")
    return SseFrame(fields.get("event", ""), fields["data"])
