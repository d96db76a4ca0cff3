"""Rows on their way through the model: waiting, prefilling, decoding.

A step works on one unit of prompt tokens and decodes. Rows whose tokens somebody waits for are not held up
for long: prefill then gets a share of the step's time and goes on, layer by layer, in the next one. Whatever
goes wrong with one row ends as its ``RowFailed``.
"""

from __future__ import annotations

import math
import time
from collections import deque
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
    from collections.abc import Callable

    from mlxcel_trio.engine.backend import LogitsProcessor
    from mlxcel_trio.engine.prefiller import Feeding, Prefiller


_FOREGROUND_SHARE = 4.0
_BACKGROUND_SHARE = 0.3
_BACKGROUND_SHARE_BESIDE_JOBS = 0.15
"""What prefill may take of a step in which somebody waits for a token, in times of a decode step.

Jobs that decode make the step longer as well, so that less is left for the prompts of others.
"""


@dataclass(slots=True, eq=False)
class _Sequence:
    """A row that has begun. ``cache`` covers ``fed`` tokens of the prompt, and what came before them."""

    row: Row
    cache: Cache
    fed: int = 0


class _Unit:
    """Chunks that are fed together, over one step or several."""

    def __init__(self, chunks: list[Chunk], sequences: dict[int, _Sequence], prefiller: Prefiller) -> None:
        self.parts = [(chunk, sequences[chunk.row_id]) for chunk in chunks]
        self._prefiller = prefiller
        self._feeding: Feeding | None = None

    def advance(self, seconds: float, clock: Callable[[], float]) -> bool:
        """Feed for so long, all tokens but the last of a prompt: that one is for decode. True at the end."""
        fed = [(sequence, tokens) for chunk, sequence in self.parts if (tokens := _to_feed(chunk, sequence))]
        if not fed:
            return True
        if self._feeding is None:
            self._feeding = self._prefiller.feed(
                [tokens for _, tokens in fed], [sequence.cache for sequence, _ in fed]
            )
        if not self._feeding.advance(seconds, clock):
            return False
        for (sequence, tokens), cache in zip(fed, self._feeding.caches(), strict=True):
            sequence.cache = cache
            sequence.fed += len(tokens)
        return True


def _to_feed(chunk: Chunk, sequence: _Sequence) -> list[int]:
    end = sequence.fed + chunk.tokens - (1 if chunk.last else 0)
    return list(sequence.row.prompt[sequence.fed : end])


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
        clock: Callable[[], float] = time.perf_counter,
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
        self._decoding: dict[int, Row] = {}
        self._unit: _Unit | None = None
        self._clock = clock
        self._last_decodes: deque[float] = deque(maxlen=2)  # in seconds
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
            self._leave_decoding(row_id)
            self._decode_batch.remove(row_id)
        if self._unit is not None and not any(self._present(sequence) for _, sequence in self._unit.parts):
            self._unit = None

    def step(self) -> list[RowEvent]:
        """Prefill for a while and do a decode step, as far as there is something to do.

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
        events += self._prefill()
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

    def _prefill(self) -> list[RowEvent]:
        """Go on with the unit in hand, and with further ones while there is time and no prompt has ended.

        Where only jobs wait, a step ends one unit at most: how long the layers of the next take is not known.
        """
        seconds = self._prefill_seconds()
        only_jobs_wait = self._only_jobs_wait()
        deadline = self._clock() + seconds
        decoding = len(self._decoding)
        events: list[RowEvent] = []
        while unit := self._unit_in_hand():
            ended = self._run(unit, seconds)
            if ended is None:
                break
            self._unit = None
            events += ended
            seconds = deadline - self._clock()
            if only_jobs_wait or not 0 < seconds < math.inf or len(self._decoding) > decoding:
                break
        return events

    def _unit_in_hand(self) -> _Unit | None:
        if self._unit is None and (chunks := self._schedule.next_unit()):
            self._unit = _Unit(chunks, self._running, self._prefiller)
        return self._unit

    def _prefill_seconds(self) -> float:
        """How long the step may prefill: for ever, if nobody waits for the tokens of rows that decode."""
        if all(row.background for row in self._decoding.values()):
            return math.inf
        # A step in which rows joined, or that the system held up, says nothing of the others.
        return self._share() * min(self._last_decodes, default=0.0)

    def _share(self) -> float:
        if not self._only_jobs_wait():
            return _FOREGROUND_SHARE
        jobs_decode = any(row.background for row in self._decoding.values())
        return _BACKGROUND_SHARE_BESIDE_JOBS if jobs_decode else _BACKGROUND_SHARE

    def _only_jobs_wait(self) -> bool:
        """No prompt that prefills is one that somebody waits for."""
        prompts = (sequence.row for row_id, sequence in self._running.items() if row_id not in self._decoding)
        return all(row.background for row in prompts)

    def _run(self, unit: _Unit, seconds: float) -> list[RowEvent] | None:
        """What came of the unit; ``None`` while it is not done."""
        try:
            if not unit.advance(seconds, self._clock):
                return None
        except Exception as error:
            present = [chunk for chunk, sequence in unit.parts if self._present(sequence)]
            if len(unit.parts) > 1:  # one of them is to blame, and the others are as they were
                alone = [_Unit([chunk], self._running, self._prefiller) for chunk in present]
                return [event for each in alone for event in self._run(each, math.inf) or []]
            message = f"prefill failed with {type(error).__name__}: {one_line(error)}"
            return [self._fail(chunk.row_id, message) for chunk in present]
        return [self._advance(chunk) for chunk, sequence in unit.parts if self._present(sequence)]

    def _present(self, sequence: _Sequence) -> bool:
        return self._running.get(sequence.row.row_id) is sequence

    def _advance(self, chunk: Chunk) -> RowEvent:
        """Report a chunk that was fed; after the last one of its prompt the row goes on to decode."""
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
        self._decoding[row.row_id] = row

    def _fail(self, row_id: int, message: str) -> RowFailed:
        self.remove(row_id)
        return RowFailed(row_id, message)

    def _decode(self) -> list[RowEvent]:
        begun = self._clock()
        events = self._decode_batch.step()
        self._last_decodes.append(self._clock() - begun)
        for event in events:
            if not isinstance(event, Sampled) or event.finish_reason is not None:
                del self._running[event.row_id]
                self._leave_decoding(event.row_id)
        return events

    def _leave_decoding(self, row_id: int) -> None:
        if self._decoding.pop(row_id).background:
            self._last_decodes.clear()  # a share of them would be too much for those who wait
