"""An engine without a thread or a model: the test says what each sequence does, and when.

It lives in trio alone, so it goes with a mock clock::

    engine = FakeEngine()
    ...                                # the code under test calls engine.generate(...)
    sequence = await engine.next_sequence()
    sequence.say("Hello")
    sequence.stop()
"""

from __future__ import annotations

import math
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio

from mlxcel_trio.core.sampling import NO_ADJUSTMENTS
from mlxcel_trio.engine.api import STANDARD_SAMPLING, Engine, EngineStatistics, GeneratedSequence
from mlxcel_trio.engine.backend import (
    FinishReason,
    LoadedModel,
    Logprobs,
    Prefilled,
    Row,
    RowEvent,
    RowFailed,
    Sampled,
)
from mlxcel_trio.engine.tokenizer import RenderedPrompt
from mlxcel_trio.errors import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlxcel_trio.core.messages import ChatMessage
    from mlxcel_trio.core.sampling import LogitAdjustments, SamplingParameters
    from mlxcel_trio.engine.bridge import EngineState

END_TOKEN = 0


class FakeTokenizer:
    """One token per chunk of text. A prompt is the turns' texts, one token a turn. For any thread."""

    end_tokens = frozenset({END_TOKEN})
    reasoning_markers: tuple[str, str] | None = ("<think>", "</think>")

    def __init__(self) -> None:
        self._texts = [""]
        self._tokens = {"": END_TOKEN}
        self._lock = threading.Lock()

    def token(self, text: str) -> int:
        """The token whose text is ``text``."""
        with self._lock:
            if text not in self._tokens:
                self._tokens[text] = len(self._texts)
                self._texts.append(text)
            return self._tokens[text]

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Each message is one token, each tool and template variable another."""
        texts = [f"{message.role}: {message.content}" for message in messages]
        variables = sorted((template_kwargs or {}).items())
        tokens = [self.token(text) for text in (*map(repr, (*tools, *variables)), *texts)]
        return RenderedPrompt(tuple(tokens), opens_reasoning=False)

    def token_bytes(self, token: int) -> bytes:
        """The token's text in UTF-8."""
        return self._texts[token].encode()

    def detokenizer(self) -> FakeDetokenizer:
        """See :class:`FakeDetokenizer`."""
        return FakeDetokenizer(self._texts)


class FakeDetokenizer:
    """Text of one token after the other."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def feed(self, token: int) -> str:
        """The token's text."""
        return self._texts[token]

    def finish(self) -> str:
        """Nothing is ever held back."""
        return ""


class FakeSequence:
    """A sequence that the code under test generates; the test plays the engine's part."""

    def __init__(self, row: Row, send: trio.MemorySendChannel[RowEvent], tokenizer: FakeTokenizer) -> None:
        self.row = row
        """What was asked for."""
        self.dropped = trio.Event()
        """Set once the code under test has left its ``generate`` block."""
        self._send = send
        self._tokenizer = tokenizer

    def prefill(self, done: int | None = None) -> None:
        """Report prefill progress; all of it by default."""
        total = len(self.row.prompt)
        self._send.send_nowait(Prefilled(0, total if done is None else done, total))

    def say(self, *chunks: str, finish: FinishReason | None = None) -> None:
        """Sample one token per chunk; the last one ends the sequence if ``finish`` says so.

        If log probabilities were asked for, that of a token and of every alternative is minus its number.
        """
        for index, chunk in enumerate(chunks):
            token = self._tokenizer.token(chunk)
            last = index == len(chunks) - 1
            self._send.send_nowait(Sampled(0, token, finish if last else None, self._logprobs(token)))

    def _logprobs(self, token: int) -> Logprobs | None:
        count = self.row.top_logprobs
        return (
            None
            if count is None
            else Logprobs(-token, tuple((token, -token) for token in range(1, count + 1)))
        )

    def stop(self) -> None:
        """Sample the end token."""
        self._send.send_nowait(Sampled(0, END_TOKEN, "stop"))

    def fail(self, message: str = "the test says so") -> None:
        """Fail this sequence."""
        self._send.send_nowait(RowFailed(0, message))


class FakeEngine(Engine):
    """See the module. ``state`` may be set by the test."""

    def __init__(self, *, context_window: int = 4096) -> None:
        self.state: EngineState = "running"
        self.fake_tokenizer = FakeTokenizer()
        self.sequences: list[FakeSequence] = []
        """Every sequence so far, in order."""
        self._new: deque[FakeSequence] = deque()
        self._arrival = trio.lowlevel.ParkingLot()
        self._model = LoadedModel(context_window, 0, "fake", "none", "none")

    @property
    def tokenizer(self) -> FakeTokenizer:
        """See :class:`FakeTokenizer`."""
        return self.fake_tokenizer

    @property
    def model(self) -> LoadedModel:
        """Only ``context_window`` means anything."""
        return self._model

    def check_running(self) -> None:
        """Raise unless ``state`` is running."""
        if self.state != "running":
            raise EngineUnavailableError(f"The fake engine is {self.state}.")

    async def next_sequence(self) -> FakeSequence:
        """Wait for the next ``generate``, in order of arrival."""
        while not self._new:
            await self._arrival.park()
        return self._new.popleft()

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
        """See :meth:`Engine.generate`."""
        self.check_running()
        send, receive = trio.open_memory_channel[RowEvent](math.inf)
        row = Row(
            len(self.sequences),
            prompt,
            max_tokens or 1,
            sampling,
            adjustments,
            top_logprobs,
            background=background,
        )
        sequence = FakeSequence(row, send, self.fake_tokenizer)
        self.sequences.append(sequence)
        self._new.append(sequence)
        self._arrival.unpark_all()
        try:
            yield GeneratedSequence(receive, self.fake_tokenizer.detokenizer())
        finally:
            sequence.dropped.set()

    def statistics(self) -> EngineStatistics:
        """``rows`` counts sequences that have not been dropped."""
        rows = sum(not sequence.dropped.is_set() for sequence in self.sequences)
        return EngineStatistics(self.state, rows, 0, 0)
