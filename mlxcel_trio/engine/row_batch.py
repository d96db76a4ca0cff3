"""Rows on their way through the generator: waiting, prefilling, decoding.

A step processes one unit of prompt tokens and decodes. Whatever goes wrong with one row ends as its
``RowFailed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxcel_trio.core.sampling import NO_ADJUSTMENTS
from mlxcel_trio.engine.backend import Prefilled, Row, RowEvent, RowFailed, Sampled
from mlxcel_trio.engine.generator import Cache, TokenGenerator, copy_cache
from mlxcel_trio.engine.penalties import Adjuster
from mlxcel_trio.engine.prefill import Chunk, PrefillSchedule
from mlxcel_trio.engine.sampler import SamplerPool
from mlxcel_trio.errors import one_line

if TYPE_CHECKING:
    from mlxcel_trio.engine.backend import LogitsProcessor


class GuardedProcessors:
    """A row's logits processors as one that never raises: an exception would cost every row its step.

    After a failure logits pass unchanged, and ``failure`` says in one line what happened.
    """

    def __init__(self, processors: tuple[LogitsProcessor, ...]) -> None:
        self._processors = processors
        self.failure: str | None = None

    def __call__(self, tokens: Any, logits: Any) -> Any:
        if self.failure is not None:
            return logits
        processed = logits
        try:
            for processor in self._processors:
                processed = processor(tokens, processed)
            shape = processed.shape
        except Exception as error:
            self.failure = f"a logits processor failed with {type(error).__name__}: {one_line(error)}"
            return logits
        if shape != logits.shape:
            self.failure = f"a logits processor returned the shape {shape} for {logits.shape}"
            return logits
        return processed


@dataclass(slots=True, eq=False)
class _Sequence:
    """A row that has begun. ``cache`` covers ``fed`` tokens of the prompt, and what came before them."""

    row: Row
    cache: Cache
    guard: GuardedProcessors | None
    fed: int = 0
    uid: int | None = None


class RowBatch:
    """The rows of a loaded model. ``parallel`` prefill or decode at once, further ones wait in order.

    Used by the thread that loaded the model.
    """

    def __init__(
        self, generator: TokenGenerator, *, parallel: int, prefill_chunk_size: int, vocabulary_size: int
    ) -> None:
        self._generator = generator
        self._parallel = parallel
        self._vocabulary_size = vocabulary_size
        self._samplers = SamplerPool()
        self._schedule = PrefillSchedule(prefill_chunk_size)
        self._refused: dict[int, RowFailed] = {}
        self._waiting: dict[int, Row] = {}
        self._running: dict[int, _Sequence] = {}
        self._generating: dict[int, _Sequence] = {}  # by uid
        self._first_tokens_due = False

    def insert(self, row: Row) -> None:
        """Take a row. One that cannot run fails with the next step."""
        if reason := self._objection(row):
            self._refused[row.row_id] = RowFailed(row.row_id, reason)
        else:
            self._waiting[row.row_id] = row

    def remove(self, row_id: int) -> None:
        """Drop a row at any stage; unknown ids are ignored."""
        self._refused.pop(row_id, None)
        self._waiting.pop(row_id, None)
        self._schedule.discard(row_id)
        sequence = self._running.pop(row_id, None)
        if sequence is not None and sequence.uid is not None:
            del self._generating[sequence.uid]
            self._generator.remove(sequence.uid)

    def step(self) -> list[RowEvent]:
        """Do one unit of prefill and a decode step, as far as there is something to do.

        Prefill comes first, so that no sampled token waits for it. Rows that end their prompts have their
        first token with the decode step after this one, which no prefill delays.
        """
        events: list[RowEvent] = list(self._refused.values())
        self._refused.clear()
        self._start_waiting()
        if self._first_tokens_due:
            self._first_tokens_due = False
        else:
            generating = set(self._generating)
            events += self._prefill(self._schedule.next_unit(idle=not generating))
            self._first_tokens_due = not generating.issuperset(self._generating)
        return events + self._decode()

    def _objection(self, row: Row) -> str | None:
        if not row.prompt or row.max_tokens < 1:
            return "a row needs a prompt and a token to generate"
        if not 0 <= min(row.prompt) <= max(row.prompt) < self._vocabulary_size:
            return f"the prompt has a token outside the model's vocabulary of {self._vocabulary_size}"
        return None

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._parallel:
            row = self._waiting.pop(next(iter(self._waiting)))
            cache = self._generator.new_cache() if row.cache is None else copy_cache(row.cache)
            processors = self._processors(row)
            guard = GuardedProcessors(processors) if processors else None
            self._running[row.row_id] = _Sequence(row, cache, guard)
            self._schedule.add(row.row_id, len(row.prompt))

    def _processors(self, row: Row) -> tuple[LogitsProcessor, ...]:
        if row.adjustments == NO_ADJUSTMENTS:
            return row.logits_processors
        adjuster = Adjuster(
            row.adjustments, prompt_length=len(row.prompt), vocabulary_size=self._vocabulary_size
        )
        return (adjuster, *row.logits_processors)

    def _prefill(self, unit: list[Chunk]) -> list[RowEvent]:
        try:
            self._feed(unit)
        except Exception as error:
            if len(unit) > 1:  # one of them is to blame, and the others are as they were
                return [event for chunk in unit for event in self._prefill([chunk])]
            message = f"prefill failed with {type(error).__name__}: {one_line(error)}"
            return [self._fail(unit[0].row_id, message)]
        return [self._advance(chunk) for chunk in unit]

    def _feed(self, unit: list[Chunk]) -> None:
        """Run the chunks' tokens through the model, but for the last of a prompt: that one is for decode."""
        prompts: dict[int, list[int]] = {}
        for chunk in unit:
            sequence = self._running[chunk.row_id]
            end = sequence.fed + chunk.tokens - (1 if chunk.last else 0)
            if end > sequence.fed:
                prompts[chunk.row_id] = list(sequence.row.prompt[sequence.fed : end])
        if not prompts:
            return
        caches = self._generator.feed(
            list(prompts.values()), [self._running[row_id].cache for row_id in prompts]
        )
        for (row_id, tokens), cache in zip(prompts.items(), caches, strict=True):
            sequence = self._running[row_id]
            sequence.cache = cache
            sequence.fed += len(tokens)

    def _advance(self, chunk: Chunk) -> RowEvent:
        """Report a chunk that was fed; after the last one the row goes on to decode."""
        sequence = self._running[chunk.row_id]
        total = len(sequence.row.prompt)
        if not chunk.last:
            return Prefilled(chunk.row_id, sequence.fed, total)
        try:
            self._hand_over(sequence)
        except ValueError as error:
            return self._fail(chunk.row_id, one_line(error))
        return Prefilled(chunk.row_id, total, total)

    def _hand_over(self, sequence: _Sequence) -> None:
        row = sequence.row
        sequence.uid = self._generator.insert(
            row.prompt[-1],
            cache=sequence.cache,
            max_tokens=row.max_tokens,
            sampler=self._samplers.sampler_for(row.sampling),
            before=row.prompt[:-1],
            processor=sequence.guard,
        )
        sequence.cache = []  # the generator has it now
        self._generating[sequence.uid] = sequence

    def _fail(self, row_id: int, message: str) -> RowFailed:
        self.remove(row_id)
        return RowFailed(row_id, message)

    def _decode(self) -> list[RowEvent]:
        if not self._generating:
            return []
        events: list[RowEvent] = []
        for sampled in self._generator.next():
            row = self._generating[sampled.uid].row
            logprobs = None if row.top_logprobs is None else sampled.with_alternatives(row.top_logprobs)
            events.append(Sampled(row.row_id, sampled.token, sampled.finish_reason, logprobs))
            if sampled.finish_reason is not None:
                del self._generating[sampled.uid], self._running[row.row_id]
        return events + self._drop_failed()

    def _drop_failed(self) -> list[RowEvent]:
        """End the rows whose processors failed on the logits after the token that was just reported.

        A row that finished with that token is gone already: its processors ran once too often, no harm.
        """
        failures = {
            sequence.row.row_id: sequence.guard.failure
            for sequence in self._generating.values()
            if sequence.guard is not None and sequence.guard.failure is not None
        }
        return [self._fail(row_id, failure) for row_id, failure in failures.items()]
