"""The SSE reader, at every cut of a body."""

from __future__ import annotations

import pytest

from mlxcel_trio.testing.sse import SseFrame, SseReader

BODY = 'event: a\ndata: {"x": "é"}\n\ndata: [DONE]\n\n'.encode()
FRAMES = [SseFrame("a", '{"x": "é"}'), SseFrame("", "[DONE]")]


@pytest.mark.parametrize("cut", range(len(BODY) + 1))
def test_any_cut_gives_the_same_frames(cut: int) -> None:
    reader = SseReader()
    frames = reader.feed(BODY[:cut]) + reader.feed(BODY[cut:])
    reader.finish()
    assert frames == FRAMES


def test_a_body_that_ends_inside_a_frame() -> None:
    reader = SseReader()
    reader.feed(BODY[:-1])
    with pytest.raises(ValueError, match="inside a frame"):
        reader.finish()


@pytest.mark.parametrize(
    "frame", [b"event: a\n\n", b": comment\n\n", b"data: a\ndata: b\n\n", b"id: 1\ndata: a\n\n"]
)
def test_what_the_server_never_sends(frame: bytes) -> None:
    with pytest.raises(ValueError, match="frame"):
        SseReader().feed(frame)
