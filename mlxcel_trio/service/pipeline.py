"""The way of one response from an admitted request to its terminal event.

There is one pipeline. Streams, JSON bodies and later background jobs differ only in who reads the events.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from mlxcel_trio.core.emitter import Cancelled, Completed, Emitter, Ending, Failed, LengthStop
from mlxcel_trio.core.logprobs import token_logprob
from mlxcel_trio.core.parsing.output import OutputParser
from mlxcel_trio.core.parsing.segments import ReasoningDelta
from mlxcel_trio.core.sampling import LogitAdjustments, SamplingParameters
from mlxcel_trio.engine.backend import Sampled
from mlxcel_trio.engine.tokenizer import RenderedPrompt
from mlxcel_trio.errors import EngineFailureError, EngineUnavailableError
from mlxcel_trio.log import get_logger
from mlxcel_trio.protocol.events import Event
from mlxcel_trio.protocol.responses import OutputTokensDetails, Response, ResponseError, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from mlxcel_trio.core.admission import Ticket
    from mlxcel_trio.core.parsing.segments import Segment
    from mlxcel_trio.core.transcript import StoredItem
    from mlxcel_trio.engine.api import Engine
    from mlxcel_trio.protocol.responses import TokenLogprob
    from mlxcel_trio.service.admission import Slots
    from mlxcel_trio.service.closing import ClosingTime
    from mlxcel_trio.service.record import Record

log = get_logger(__name__)


class Generation(Struct, frozen=True):
    """What to generate: the rendered prompt, a token budget of at least 1, and how to sample and stop."""

    prompt: RenderedPrompt
    max_tokens: int
    sampling: SamplingParameters
    adjustments: LogitAdjustments
    top_logprobs: int | None
    stops: tuple[str, ...]


class ResponseRun:
    """One response being generated. Holds its ticket from the start and gives it back when it ends.

    Use :meth:`open` for the events as they come or :meth:`run` for the final object, once. A run that is
    given up before either is :meth:`close`\\ d.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        slots: Slots,
        closing: ClosingTime,
        ticket: Ticket,
        generation: Generation,
        emitter: Emitter,
        record: Record,
        stream: bool,
        wall_clock: Callable[[], float],
    ) -> None:
        self.stream = stream
        self._engine = engine
        self._slots = slots
        self._closing = closing
        self._ticket = ticket
        self._generation = generation
        self._emitter = emitter
        self._record = record
        self._feed = _Feed()
        self._generating = trio.CancelScope()
        self._settled = False
        self._wall_clock = wall_clock
        self._parser = OutputParser(
            reasoning_markers=engine.tokenizer.reasoning_markers,
            reasoning_opened=generation.prompt.opens_reasoning,
            stops=generation.stops,
        )
        self._output_tokens = 0
        self._reasoning_tokens = 0

    @property
    def response_id(self) -> str:
        """The id that every event and the final object carry."""
        return self._emitter.response.id

    @property
    def response(self) -> Response:
        """The object as it stands: without output until the end, then the final one."""
        return self._emitter.response

    @property
    def input_items(self) -> tuple[StoredItem, ...]:
        """The items of the request, as they are listed."""
        return self._record.dialogue.own

    def cancel(self) -> Response:
        """End an open run as cancelled, unless it has ended; returns the final object either way.

        What was generated so far is kept. The terminal event is out when this returns; the engine lets go of
        the row by the end of its step.
        """
        self._settle(Cancelled())
        self._generating.cancel()
        return self.response

    def close(self) -> None:
        """Give the queue place or slot back. Idempotent; never waits."""
        self._slots.release(self._ticket)

    @asynccontextmanager
    async def open(
        self, *, ping_interval: float | None = None
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Event]]:
        """Generate in a nursery of this block and yield the events; the channel ends after the last.

        Leaving the block cancels what is left: the row is dropped and the slot is free. Silence longer
        than ``ping_interval`` seconds repeats ``response.in_progress``. Failures of generation are an
        event, never an exception.
        """
        self._feed.publish(self._emitter.start())
        try:
            with self._record.live(self):
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
        response = self._emitter.response
        if response.error is not None:
            raise EngineFailureError(response.error.message)
        return response

    async def _produce(self, ping_interval: float | None) -> None:
        with self._feed:
            ending: Ending = Cancelled()
            with self._generating:
                async with trio.open_nursery() as nursery:
                    if ping_interval:
                        nursery.start_soon(self._ping_in_silence, ping_interval)
                    ending = await self._generate_until_closing()
                    nursery.cancel_scope.cancel()
            self._settle(ending)

    def _settle(self, ending: Ending) -> None:
        """End the response, once: whoever comes first decides how. It is stored before anybody is told."""
        if self._settled:
            return
        self._settled = True
        events = self._emitter.finish(ending, self._usage(), int(self._wall_clock()))
        self._record.keep(self.response)
        self._feed.publish(events)

    async def _generate_until_closing(self) -> Ending:
        closed = ResponseError("server_error", "The server is shutting down. Send the request again later.")
        endings: list[Ending] = [Failed(closed)]
        with self._closing.scope():
            endings.append(await self._generate())
        return endings[-1]

    async def _generate(self) -> Ending:
        try:
            return await self._decode()
        except (EngineFailureError, EngineUnavailableError) as error:
            message = error.message
        except Exception:
            log.exception("response_failed", response_id=self.response_id)
            message = "The server failed while generating this response."
        finally:
            self.close()
        return Failed(ResponseError("server_error", message))

    async def _decode(self) -> Ending:
        await self._slots.granted(self._ticket)
        generation = self._generation
        ending: Ending = Completed()
        with self._engine.generate(
            generation.prompt.tokens,
            max_tokens=generation.max_tokens,
            sampling=generation.sampling,
            adjustments=generation.adjustments,
            top_logprobs=generation.top_logprobs,
        ) as sequence:
            async for event in sequence:
                if isinstance(event, Sampled):
                    self._take_token(sequence.text_of(event), self._logprob(event))
                    if self._parser.stopped:
                        return Completed()
                    if event.finish_reason == "length":
                        ending = LengthStop()
        self._publish(self._parser.finish())
        return Completed() if self._parser.stopped else ending

    def _logprob(self, event: Sampled) -> TokenLogprob | None:
        if event.logprobs is None or event.finish_reason == "stop":  # the end token has no text
            return None
        spell = self._engine.tokenizer.token_bytes
        return token_logprob(
            spell(event.token),
            event.logprobs.sampled,
            [(spell(token), value) for token, value in event.logprobs.top],
        )

    def _take_token(self, text: str, logprob: TokenLogprob | None) -> None:
        parser = self._parser
        reasoning = parser.in_reasoning
        segments = parser.feed(text, logprob)
        self._output_tokens += 1
        # The tokens of the markers count as reasoning too.
        reasoning = reasoning or parser.in_reasoning or any(isinstance(s, ReasoningDelta) for s in segments)
        self._reasoning_tokens += reasoning
        self._publish(segments)

    def _publish(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            if not self._settled:  # a token may be on its way while the response is cancelled
                self._feed.publish(self._emitter.feed(segment))

    def _usage(self) -> Usage:
        input_tokens = len(self._generation.prompt.tokens)
        return Usage(
            input_tokens=input_tokens,
            output_tokens=self._output_tokens,
            output_tokens_details=OutputTokensDetails(self._reasoning_tokens),
            total_tokens=input_tokens + self._output_tokens,
        )

    async def _ping_in_silence(self, interval: float) -> None:
        feed = self._feed
        while True:
            await trio.sleep_until(feed.last_event_at + interval)
            if self._settled or trio.current_time() < feed.last_event_at + interval:
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
