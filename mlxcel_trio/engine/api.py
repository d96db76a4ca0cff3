"""The engine as the rest of the program sees it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import trio
from msgspec import Struct

from mlxcel_trio.core.sampling import NO_ADJUSTMENTS, LogitAdjustments, SamplingParameters
from mlxcel_trio.engine.backend import Backend, LoadedModel, Prefilled, Row, RowEvent, RowFailed, Sampled
from mlxcel_trio.engine.bridge import UNAVAILABLE, EngineBridge, EngineState
from mlxcel_trio.errors import EngineFailureError, EngineUnavailableError, InvalidRequestError

if TYPE_CHECKING:
    from mlxcel_trio.core.messages import ChatMessage
    from mlxcel_trio.engine.detokenizer import StreamingDetokenizer
    from mlxcel_trio.engine.tokenizer import RenderedPrompt


class Tokenizer(Protocol):
    """What the engine's users need of a ``ChatTokenizer``; safe to use from worker threads."""

    @property
    def reasoning_markers(self) -> tuple[str, str] | None:
        """Texts that open and close reasoning, for a model that writes any."""
        ...

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = ...,
        template_kwargs: Mapping[str, Any] | None = ...,
    ) -> RenderedPrompt:
        """The prompt of a dialogue."""
        ...

    def detokenizer(self) -> StreamingDetokenizer:
        """A fresh detokenizer for one sequence."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token's text."""
        ...


STANDARD_SAMPLING = SamplingParameters()

EngineLoader = Callable[[], tuple[Tokenizer, Backend]]
"""Prepares a model without loading its weights. Called once, in a worker thread."""


class EngineStatistics(Struct, frozen=True):
    """Counts since the start, as of the last finished step.

    ``rows`` are in the backend or on their way in or out: a dropped row counts until the engine thread
    has let go of it. ``steps`` are engine steps, ``sampled_tokens`` are tokens handed out.
    """

    state: EngineState
    rows: int
    steps: int
    sampled_tokens: int


class GeneratedSequence:
    """What the engine reports about one sequence, in order. Iterated by one task.

    Ends after the ``Sampled`` event that carries a finish reason. Nothing is lost while nobody iterates:
    events wait in a channel of the sequence's own, bounded by its token budget.

    :raises EngineFailureError: while iterating, when this sequence or the engine failed.
    """

    def __init__(
        self, receive: trio.MemoryReceiveChannel[RowEvent], detokenizer: StreamingDetokenizer
    ) -> None:
        self._receive = receive
        self._detokenizer = detokenizer
        self._ended = False

    def __aiter__(self) -> GeneratedSequence:
        return self

    async def __anext__(self) -> Prefilled | Sampled:
        if self._ended:
            raise StopAsyncIteration
        event = await self._receive.receive()
        if isinstance(event, RowFailed):
            self._ended = True
            raise EngineFailureError(f"Generation failed: {event.message}.")
        self._ended = isinstance(event, Sampled) and event.finish_reason is not None
        return event

    def text_of(self, event: Prefilled | Sampled) -> str:
        """The text that is final with this event; never half a character. Call it once per event, in order.

        The end token has no text, and neither has prefill.
        """
        if isinstance(event, Prefilled):
            return ""
        text = "" if event.finish_reason == "stop" else self._detokenizer.feed(event.token)
        return text if event.finish_reason is None else text + self._detokenizer.finish()

    async def text(self) -> str:
        """Generate to the end and return the text."""
        return "".join([self.text_of(event) async for event in self])


class Engine:
    """A model that generates many sequences at once, with the tokenizer that belongs to it.

    Everything but :meth:`run` raises :class:`EngineUnavailableError` until the model is loaded, and
    :meth:`generate` does so again once the engine has stopped.
    """

    def __init__(self, load: EngineLoader, *, decode_timeout: float = math.inf) -> None:
        """``decode_timeout``: seconds after which an engine step that has not ended counts as hanging."""
        self._decode_timeout = decode_timeout
        self._load = load
        self._tokenizer: Tokenizer | None = None
        self._bridge: EngineBridge | None = None
        self._ended = False
        self._row_ids = itertools.count()

    async def run(self, *, task_status: trio.TaskStatus[LoadedModel] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the model and generate until cancelled; see :meth:`EngineBridge.run`."""
        try:
            self._tokenizer, backend = await trio.to_thread.run_sync(self._load)
            self._bridge = EngineBridge(backend, decode_timeout=self._decode_timeout)
            await self._bridge.run(task_status=task_status)
        finally:
            self._ended = True

    @property
    def tokenizer(self) -> Tokenizer:
        """Renders prompts and turns tokens into text; safe to use from worker threads."""
        if self._tokenizer is None:
            raise EngineUnavailableError(UNAVAILABLE[self.statistics().state])
        return self._tokenizer

    @property
    def model(self) -> LoadedModel:
        """What is known of the loaded model."""
        return self._loaded_bridge().model

    @contextmanager
    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int | None = None,
        sampling: SamplingParameters = STANDARD_SAMPLING,
        adjustments: LogitAdjustments = NO_ADJUSTMENTS,
        top_logprobs: int | None = None,
        background: bool = False,
    ) -> Iterator[GeneratedSequence]:
        """Generate one sequence; leaving the block drops it, whatever its stage.

        ``prompt`` holds at least one token; without ``max_tokens`` the answer may fill the context window.
        With ``top_logprobs`` each token comes with its log probability and that many alternatives. A
        ``background`` prompt is computed more slowly, and holds up the tokens of other sequences less.

        :raises InvalidRequestError: the prompt is empty or fills the window.
        """
        bridge = self._loaded_bridge()
        room = bridge.model.context_window - len(prompt)
        if not prompt or room < 1:
            raise InvalidRequestError(
                f"A prompt has 1 to {bridge.model.context_window - 1} tokens, not {len(prompt)}."
            )
        budget = min(max_tokens or room, room)
        row = Row(
            next(self._row_ids), prompt, budget, sampling, adjustments, top_logprobs, background=background
        )
        send, receive = trio.open_memory_channel[RowEvent](math.inf)  # bounded by max_tokens
        bridge.insert_nowait(row, send.send_nowait)
        try:
            yield GeneratedSequence(receive, self.tokenizer.detokenizer())
        finally:
            bridge.remove_nowait(row.row_id)
            receive.close()

    def check_running(self) -> None:
        """Raise what :meth:`generate` would raise now."""
        self._loaded_bridge().check_running()

    def statistics(self) -> EngineStatistics:
        """Counts as of the last finished step; never raises."""
        bridge = self._bridge
        if bridge is None:
            return EngineStatistics("stopped" if self._ended else "loading", 0, 0, 0)
        return EngineStatistics(bridge.state, bridge.rows, bridge.steps, bridge.sampled_tokens)

    async def wait_drained(self) -> None:
        """Wait until the engine holds no row."""
        await self._loaded_bridge().wait_drained()

    def _loaded_bridge(self) -> EngineBridge:
        if self._bridge is None:
            raise EngineUnavailableError(UNAVAILABLE[self.statistics().state])
        return self._bridge
