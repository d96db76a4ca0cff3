"""The service room as the HTTP room sees it, with every run in the hands of the test."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from msgspec import Struct
from msgspec.structs import replace

from mlxcel_trio.errors import NotFoundError
from mlxcel_trio.protocol.events import (
    Event,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseInProgress,
)
from mlxcel_trio.protocol.models import ModelList, ModelObject
from mlxcel_trio.protocol.responses import InputTokens, Message, OutputText, Response
from mlxcel_trio.protocol.tools import PlainTextFormat, TextConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mlxcel_trio.protocol.requests import CreateResponse

MODEL = ModelObject("org/tiny", created=1_700_000_000)

INPUT_TOKENS = 7
"""What every prompt counts."""


class FakeHealth(Struct, frozen=True):
    """As the real one, ``ok`` and some figures."""

    ok: bool
    running: int = 0


def response(response_id: str = "resp_1", **changes: object) -> Response:
    """A response in progress."""
    plain = Response(
        id=response_id,
        created_at=1_700_000_000,
        status="in_progress",
        model="tiny",
        text=TextConfig(PlainTextFormat()),
        temperature=1.0,
        top_p=1.0,
        store=False,
    )
    return replace(plain, **changes)


def finished(response_id: str = "resp_1", text: str = "Hello") -> Response:
    """The same, completed with ``text``."""
    message = Message("msg_1", "completed", (OutputText(text),))
    return response(response_id, status="completed", completed_at=1_700_000_001, output=(message,))


def opening(response_id: str = "resp_1") -> list[Event]:
    """The events 0 and 1 of every stream."""
    state = response(response_id)
    return [
        ResponseCreated(sequence_number=0, response=state),
        ResponseInProgress(sequence_number=1, response=state),
    ]


def delta(number: int, text: str) -> OutputTextDelta:
    """Event ``number``: more text."""
    return OutputTextDelta(
        sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=text
    )


def completed(number: int, response_id: str = "resp_1") -> ResponseCompleted:
    """Event ``number``: the end."""
    return ResponseCompleted(sequence_number=number, response=finished(response_id))


class FakeRun:
    """An admitted response.

    ``events`` is what the test emits through; ``begun`` and ``left`` tell when the block of the run was
    entered and left, ``cancelled`` whether by a cancel; ``closed`` when the queue place became free, and
    ``detached`` whether it became a job.
    """

    def __init__(self, request: CreateResponse, owner: str | None, response_id: str) -> None:
        self.request = request
        self.owner = owner
        self.response_id = response_id
        self.stream = bool(request.stream)
        self.background = bool(request.background)
        self.events, self._receive = trio.open_memory_channel[Event](math.inf)
        self.result: trio.MemorySendChannel[Response | Exception]
        self.result, self._result = trio.open_memory_channel[Response | Exception](1)
        self.ping_interval: float | None = None
        self.begun = trio.Event()
        self.left = trio.Event()
        self.closed = trio.Event()
        self.cancelled = False
        self.detached = False

    def detach(self) -> Response:
        self.detached = True
        return response(self.response_id, status="queued", background=True)

    def close(self) -> None:
        self.closed.set()

    @asynccontextmanager
    async def open(self, *, ping_interval: float | None) -> AsyncIterator[trio.MemoryReceiveChannel[Event]]:
        self.ping_interval = ping_interval
        async with self._running():
            yield self._receive

    async def run(self) -> Response:
        async with self._running():
            outcome = await self._result.receive()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        self.begun.set()
        try:
            async with trio.open_nursery() as nursery:
                yield
                nursery.cancel_scope.cancel()
        except BaseException:
            self.cancelled = True
            raise
        finally:
            self.close()
            self.left.set()


class FakeResponses:
    """Admits everything; but ``prepare`` waits for ``gate``, and a request meets ``refusal`` if there is one.

    ``counted`` are the requests whose tokens were asked for, with their owners.
    """

    def __init__(self) -> None:
        self.healthy = True
        self.refusal: Exception | None = None
        self.gate: trio.Event | None = None
        self.preparing = trio.Event()
        self.counted: list[tuple[CreateResponse, str | None]] = []
        self._admitted, self._new_runs = trio.open_memory_channel[FakeRun](math.inf)
        self._count = 0

    async def prepare(self, request: CreateResponse, owner: str | None) -> FakeRun:
        self.preparing.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        self._count += 1
        run = FakeRun(request, owner, f"resp_{self._count}")
        self._admitted.send_nowait(run)
        return run

    async def count_input_tokens(self, request: CreateResponse, owner: str | None) -> InputTokens:
        self.counted.append((request, owner))
        if self.refusal is not None:
            raise self.refusal
        return InputTokens(input_tokens=INPUT_TOKENS)

    async def next_run(self) -> FakeRun:
        """The next run in order of admission."""
        return await self._new_runs.receive()

    def models(self) -> ModelList:
        return ModelList((MODEL,))

    def model(self, name: str) -> ModelObject:
        if name != MODEL.id:
            raise NotFoundError(f"No model '{name}'.", code="model_not_found")
        return MODEL

    def health(self) -> FakeHealth:
        return FakeHealth(ok=self.healthy)
