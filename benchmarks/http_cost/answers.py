"""Prepared answers in place of a model, the same for every server that is measured."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio
from msgspec.structs import replace

from mlxcel_trio.protocol.events import (
    Event,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseInProgress,
)
from mlxcel_trio.protocol.responses import Message, OutputText, Response
from mlxcel_trio.protocol.tools import PlainTextFormat, TextConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcel_trio.protocol.requests import CreateResponse

STEP_SECONDS = 0.004
"""What a decode step takes: short, yet long enough for 16 connections to have sent what they were given."""

_TEXT = "The capital of France is Paris."
_IN_PROGRESS = Response(
    id="resp_0123456789abcdef0123456789abcdef",
    created_at=1_700_000_000,
    status="in_progress",
    model="benchmark",
    text=TextConfig(PlainTextFormat()),
    temperature=1.0,
    top_p=1.0,
    store=False,
)
_MESSAGE = Message("msg_0123456789abcdef0123456789abcdef", "completed", (OutputText(_TEXT),))
FINISHED = replace(_IN_PROGRESS, status="completed", completed_at=1_700_000_001, output=(_MESSAGE,))
"""The answer to a request that wants JSON."""

EVENTS_AROUND_DELTAS = 3


class FakeEngine:
    """Gives every open stream its next events at once, step after step, as the engine thread does.

    A request says in ``max_output_tokens`` how many deltas it wants, and in its metadata, as ``burst``, how
    many of them come in one step.
    """

    def __init__(self) -> None:
        self._streams: set[_Stream] = set()

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            await trio.sleep(STEP_SECONDS)
            for stream in list(self._streams):
                stream.step()

    @contextmanager
    def events(self, request: CreateResponse) -> Iterator[trio.MemoryReceiveChannel[Event]]:
        """The events that answer ``request``; none come after the block."""
        send, receive = trio.open_memory_channel[Event](math.inf)
        stream = _Stream(
            send, request.max_output_tokens or 1, int((request.metadata or {}).get("burst", "1"))
        )
        self._streams.add(stream)
        try:
            yield receive
        finally:
            self._streams.discard(stream)


class _Stream:
    """The events of one answer that are still to come."""

    def __init__(self, send: trio.MemorySendChannel[Event], deltas: int, burst: int) -> None:
        self._send = send
        self._next_number = 2
        self._last_number = 2 + deltas
        self._burst = burst
        send.send_nowait(ResponseCreated(sequence_number=0, response=_IN_PROGRESS))
        send.send_nowait(ResponseInProgress(sequence_number=1, response=_IN_PROGRESS))

    def step(self) -> None:
        """Send the next burst, and behind the last one the end."""
        for _ in range(self._burst):
            if self._next_number < self._last_number:
                self._send.send_nowait(_delta(self._next_number))
                self._next_number += 1
        if self._next_number == self._last_number:
            self._send.send_nowait(ResponseCompleted(sequence_number=self._last_number, response=FINISHED))
            self._next_number += 1


def _delta(number: int) -> OutputTextDelta:
    return OutputTextDelta(
        sequence_number=number, item_id=_MESSAGE.id, output_index=0, content_index=0, delta=" token"
    )
