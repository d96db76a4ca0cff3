"""The way of one response from an admitted request to its terminal event.

There is one pipeline. Streams, JSON bodies and background jobs differ in how they start and in who reads the
events.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import trio
from msgspec import Struct
from msgspec.structs import replace

from mlxcel_trio.core.emitter import Cancelled, Completed, Emitter, Ending, Failed, LengthStop
from mlxcel_trio.engine.backend import Prefilled, Sampled
from mlxcel_trio.errors import (
    EngineFailureError,
    EngineUnavailableError,
    InvalidRequestError,
    ServerOverloadedError,
)
from mlxcel_trio.log import get_logger
from mlxcel_trio.protocol.events import Event
from mlxcel_trio.protocol.responses import Response, ResponseError, Usage
from mlxcel_trio.service.generation import OutputReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from mlxcel_trio.core.parsing.segments import Segment
    from mlxcel_trio.core.transcript import StoredItem
    from mlxcel_trio.engine.api import Engine, GeneratedSequence
    from mlxcel_trio.service.closing import ClosingTime
    from mlxcel_trio.service.record import Record
    from mlxcel_trio.service.starts import Start

log = get_logger(__name__)


class RunFigures(Struct, frozen=True):
    """How a run went: seconds until the engine began with it, prompt tokens processed, tokens sampled."""

    queued_seconds: float
    prefill_tokens: int
    decode_tokens: int


class ResponseRun:
    """One response being generated. It can be found by its id, and holds its start, until it ends.

    Use :meth:`open` for the events as they come or :meth:`run` for the final object, once; or, for a
    background response, :meth:`detach`. A run that is given up before is :meth:`close`\\ d.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        start: Start,
        closing: ClosingTime,
        emitter: Emitter,
        record: Record,
        detach: Callable[[ResponseRun], None] | None,
        stream: bool,
        wall_clock: Callable[[], float],
    ) -> None:
        """``detach`` makes the run a job: it is background then."""
        self.stream = stream
        self._detach = detach
        self._engine = engine
        self._start = start
        self._closing = closing
        self._emitter = emitter
        self._record = record
        self._wall_clock = wall_clock
        self._created_at = trio.current_time()
        self._begun_at: float | None = None
        self._prefill_tokens = 0
        self._output: OutputReader | None = None
        self._final: Response | None = None
        self._generating = trio.CancelScope()
        self._feed = _Feed()
        self._feed.publish(emitter.start())
        self._resources = ExitStack()
        self._resources.callback(start.close)
        self._resources.enter_context(record.live(self))

    @property
    def response_id(self) -> str:
        """The id that every event and the final object carry."""
        return self._emitter.response.id

    @property
    def background(self) -> bool:
        """Whether it is to run as a job."""
        return self._detach is not None

    @property
    def response(self) -> Response:
        """The object as it stands: without output until the end, then the final one."""
        if self._final is not None:
            return self._final
        if self.background and self._begun_at is None:
            return replace(self._emitter.response, status="queued")
        return self._emitter.response

    @property
    def input_items(self) -> tuple[StoredItem, ...]:
        """The items of the request, as they are listed."""
        return self._record.dialogue.own

    @property
    def figures(self) -> RunFigures:
        """How it went so far."""
        begun_at = trio.current_time() if self._begun_at is None else self._begun_at
        return RunFigures(begun_at - self._created_at, self._prefill_tokens, self._usage().output_tokens)

    def detach(self) -> Response:
        """Let a background response run as a job from now on; returns it as it stands."""
        if self._detach is None:
            raise RuntimeError("Only a background response can be detached.")
        self._detach(self)
        return self.response

    def cancel(self) -> Response:
        """End it as cancelled, unless it has ended; returns the final object either way.

        A foreground response keeps what was generated so far. The terminal event is out when this returns;
        the engine lets go of the row by the end of its step.
        """
        final = self._settle(Cancelled())
        self._generating.cancel()
        return final

    def close(self) -> None:
        """Give back all that it holds. Idempotent; never waits."""
        self._resources.close()

    @asynccontextmanager
    async def open(
        self, *, ping_interval: float | None = None
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Event]]:
        """Generate in a nursery of this block and yield the events; the channel ends after the last.

        Leaving the block cancels what is left: the row is dropped and the slot is free. Silence longer
        than ``ping_interval`` seconds repeats ``response.in_progress``. Failures of generation are an
        event, never an exception.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._produce, ping_interval)
                yield self._feed.reader
                nursery.cancel_scope.cancel()
        finally:
            self._feed.reader.close()
            self.close()

    async def run(self) -> Response:
        """Generate to the end and return the final object.

        :raises EngineFailureError: generation failed.
        """
        async with self.open() as events:
            async for _ in events:
                pass
        if self.response.error is not None:
            raise EngineFailureError(self.response.error.message)
        return self.response

    async def _produce(self, ping_interval: float | None) -> None:
        with self._feed:
            ending: Ending = Cancelled()
            with self._generating:
                async with trio.open_nursery() as nursery:
                    if ping_interval:
                        nursery.start_soon(self._ping_in_silence, ping_interval)
                    ending = await self._generate_until_closing()
                    nursery.cancel_scope.cancel()
            # A client that went away with the last token is told nothing, so nothing is stored for it.
            await trio.lowlevel.checkpoint_if_cancelled()
            self._settle(ending)

    def _settle(self, ending: Ending) -> Response:
        """End the response, once: whoever comes first decides how. It is stored before anybody is told."""
        if self._final is None:
            events = self._emitter.finish(ending, self._usage(), int(self._wall_clock()))
            final = self._emitter.response
            if self.background and final.status == "cancelled":
                final = replace(final, output=(), usage=Usage())
            elif self.background and final.status == "failed":
                final = replace(final, output=())
            self._final = self._record.keep(final)
            self._feed.publish(events)
        return self._final

    async def _generate_until_closing(self) -> Ending:
        closed = ResponseError("server_error", "The server is shutting down. Send the request again later.")
        endings: list[Ending] = [Failed(closed)]
        with self._closing.scope():
            endings.append(await self._generate())
        return endings[-1]

    async def _generate(self) -> Ending:
        try:
            return await self._decode()
        except InvalidRequestError as error:
            failure = ResponseError("invalid_prompt", error.message)
        except ServerOverloadedError as error:
            failure = ResponseError("server_overloaded", error.message)
        except (EngineFailureError, EngineUnavailableError) as error:
            failure = ResponseError("server_error", error.message)
        except Exception:
            log.exception("response_failed", response_id=self.response_id)
            failure = ResponseError("server_error", "The server failed while generating this response.")
        finally:
            self._start.close()
        return Failed(failure)

    async def _decode(self) -> Ending:
        generation = await self._start.wait()
        self._output = output = OutputReader(generation, self._engine.tokenizer)
        with self._engine.generate(
            generation.prompt.tokens,
            max_tokens=generation.max_tokens,
            sampling=generation.sampling,
            adjustments=generation.adjustments,
            top_logprobs=generation.top_logprobs,
            background=generation.background,
        ) as sequence:
            self._start.entered()
            ending = await self._read(sequence, output)
        if not output.stopped:
            self._publish(output.finish())
        return Completed() if output.stopped else ending  # the held back rest may hold a stop string

    async def _read(self, sequence: GeneratedSequence, output: OutputReader) -> Ending:
        ending: Ending = Completed()
        async for event in sequence:
            if self._begun_at is None:
                self._begun_at = trio.current_time()
            if isinstance(event, Prefilled):
                self._prefill_tokens = event.done
            elif isinstance(event, Sampled):
                self._publish(output.take(event, sequence.text_of(event)))
                if output.stopped:
                    break
                if event.finish_reason == "length":
                    ending = LengthStop()
        return ending

    def _publish(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            if self._final is None:  # a token may be on its way while the response is cancelled
                self._feed.publish(self._emitter.feed(segment))

    def _usage(self) -> Usage:
        return Usage() if self._output is None else self._output.usage()

    async def _ping_in_silence(self, interval: float) -> None:
        feed = self._feed
        while True:
            await trio.sleep_until(feed.last_event_at + interval)
            if self._final is not None or trio.current_time() < feed.last_event_at + interval:
                continue
            if feed.unread:  # the reader is behind: it is not waiting for a sign of life
                feed.last_event_at = trio.current_time()
            else:
                feed.publish([self._emitter.ping()])


class _Feed:
    """The channel of events; leaving it ends the channel. Knows when it was last used."""

    def __init__(self) -> None:
        send, self.reader = trio.open_memory_channel[Event](math.inf)  # bounded by the token budget
        self._send = send
        self.last_event_at = trio.current_time()

    def __enter__(self) -> None: ...

    def __exit__(self, *_exc: object) -> None:
        self._send.close()

    @property
    def unread(self) -> int:
        """Events that the reader has not taken yet."""
        return self._send.statistics().current_buffer_used

    def publish(self, events: Iterable[Event]) -> None:
        """Hand events to the reader without waiting: no checkpoint lies between them."""
        for event in events:
            self._send.send_nowait(event)
            self.last_event_at = trio.current_time()
