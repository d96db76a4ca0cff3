"""Rows on their way through the model: waiting, prefilling, decoding.

A step processes one unit of prompt tokens and decodes. Whatever goes wrong with one row ends as its
``RowFailed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_trio.core.sampling import NO_ADJUSTMENTS
from mlxcel_trio.engine.backend import Prefilled, Row, RowEvent, RowFailed, Sampled
from mlxcel_trio.engine.caches import Cache, copy_cache
from mlxcel_trio.engine.decode_batch import DecodeBatch, DecodingRow
from mlxcel_trio.engine.penalties import Adjuster
from mlxcel_trio.engine.prefill import Chunk, PrefillSchedule
from mlxcel_trio.engine.sampler import SamplerPool
from mlxcel_trio.errors import one_line

if TYPE_CHECKING:
    from mlxcel_trio.engine.backend import LogitsProcessor
    from mlxcel_trio.engine.prefiller import Prefiller


@dataclass(slots=True, eq=False)
class _Sequence:
    """A row that has begun. ``cache`` covers ``fed`` tokens of the prompt, and what came before them."""

    row: Row
    cache: Cache
    fed: int = 0


class RowBatch:
    """The rows of a loaded model. ``parallel`` prefill or decode at once, further ones wait in order.

    Used by the thread that loaded the model.
    """

    def __init__(
        self,
        prefiller: Prefiller,
        decode_batch: DecodeBatch,
        *,
        parallel: int,
        prefill_chunk_size: int,
        vocabulary_size: int,
    ) -> None:
        self._prefiller = prefiller
        self._decode_batch = decode_batch
        self._parallel = parallel
        self._vocabulary_size = vocabulary_size
        self._samplers = SamplerPool()
        self._schedule = PrefillSchedule(prefill_chunk_size)
        self._refused: dict[int, RowFailed] = {}
        self._waiting: dict[int, Row] = {}
        self._running: dict[int, _Sequence] = {}
        self._decoding: set[int] = set()
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
        self._running.pop(row_id, None)
        if row_id in self._decoding:
            self._decoding.remove(row_id)
            self._decode_batch.remove(row_id)

    def step(self) -> list[RowEvent]:
        """Do one unit of prefill and a decode step, as far as there is something to do.

        Prefill comes first, so that no sampled token waits for it. Rows that end their prompts have their
        first token with the step after this one, which no prefill delays.
        """
        events: list[RowEvent] = list(self._refused.values())
        self._refused.clear()
        self._start_waiting()
        if self._first_tokens_due:
            self._first_tokens_due = False
            return events + self._decode()
        decoding = set(self._decoding)
        events += self._prefill(self._schedule.next_unit(idle=not decoding))
        self._first_tokens_due = not decoding.issuperset(self._decoding)
        return events + self._decode() if decoding else events

    def _objection(self, row: Row) -> str | None:
        if not row.prompt or row.max_tokens < 1:
            return "a row needs a prompt and a token to generate"
        if not 0 <= min(row.prompt) <= max(row.prompt) < self._vocabulary_size:
            return f"the prompt has a token outside the model's vocabulary of {self._vocabulary_size}"
        return None

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._parallel:
            row = self._waiting.pop(next(iter(self._waiting)))
            cache = self._prefiller.new_cache() if row.cache is None else copy_cache(row.cache)
            self._running[row.row_id] = _Sequence(row, cache)
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
        caches = self._prefiller.feed(
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
        self._prefiller.check_fits(sequence.cache)
        self._decode_batch.add(
            DecodingRow(
                row.row_id,
                last_token=row.prompt[-1],
                before=row.prompt[:-1],
                cache=sequence.cache,
                max_tokens=row.max_tokens,
                sampler=self._samplers.sampler_for(row.sampling),
                processors=self._processors(row),
                top_logprobs=row.top_logprobs,
            )
        )
        sequence.cache = []  # the batch has it now
        self._decoding.add(row.row_id)

    def _fail(self, row_id: int, message: str) -> RowFailed:
        self.remove(row_id)
        return RowFailed(row_id, message)

    def _decode(self) -> list[RowEvent]:
        events = self._decode_batch.step()
        for event in events:
            if not isinstance(event, Sampled) or event.finish_reason is not None:
                self._decoding.remove(event.row_id)
                del self._running[event.row_id]
        return events
