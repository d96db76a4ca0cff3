"""The rows that decode: one more token for each of them with every step.

The model's graph for the next step is made from tokens that do not exist yet, so that Python works while MLX
computes them. A CPU gets that graph only when the tokens are out, for there MLX makes its caller wait through
most of what it is given. A GPU gets it at once and never idles.

Everything here belongs to the thread that loaded the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import TokenBuffer

from mlxcel_trio.engine.backend import Logprobs, RowEvent, RowFailed, Sampled
from mlxcel_trio.engine.caches import Cache, join, share_offsets
from mlxcel_trio.engine.sampler import greedy, rank
from mlxcel_trio.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx.nn.layers.base import Module

    from mlxcel_trio.engine.backend import FinishReason, LogitsProcessor
    from mlxcel_trio.engine.rotary import SharedRoPE
    from mlxcel_trio.engine.sampler import Sampler

_STEPS_BETWEEN_CLEANINGS = 512


@dataclass(slots=True, eq=False)
class DecodingRow:
    """A row whose prompt is computed but for its last token, which is ``last_token``.

    ``cache`` covers ``before``, the tokens ahead of that one. ``processors`` are called with these, the last
    token and all that was sampled so far. ``top_logprobs`` as in :class:`mlxcel_trio.engine.backend.Row`.
    """

    row_id: int
    last_token: int
    before: Sequence[int]
    cache: Cache
    max_tokens: int
    sampler: Sampler
    processors: tuple[LogitsProcessor, ...] = ()
    top_logprobs: int | None = None


class DecodeBatch:
    """Decodes rows together; they join and leave between steps.

    ``ahead``: hand a step to MLX before the tokens of the one before it are read, as suits a GPU. Processors
    are then called once in vain after an end token. ``rotary``: the model's embeddings that share, if any do.
    """

    def __init__(
        self,
        model: Module,
        *,
        end_tokens: frozenset[int],
        ahead: bool,
        rotary: Sequence[SharedRoPE] = (),
    ) -> None:
        self._model = model
        self._rotary = rotary
        self._end_tokens = end_tokens
        self._ahead = ahead
        self._joining: list[_Member] = []
        self._members: list[_Member] = []  # in the order of the arrays' rows
        self._cache: Cache = []
        self._inputs = _tokens([])  # what each member feeds next
        self._logits = mx.zeros([0])  # of each member's next token, unless sampled already
        self._sampled: _Step | None = None
        self._steps = 0

    def add(self, row: DecodingRow) -> None:
        """Take a row, and its cache. It decodes from the next step on, or the one after."""
        self._joining.append(_Member(row))

    def remove(self, row_id: int) -> None:
        """Drop a row; unknown ids are ignored. The last row's memory is free at once, others' with a step."""
        self._joining = [member for member in self._joining if member.row.row_id != row_id]
        for member in self._members:
            member.gone |= member.row.row_id == row_id
        self._free_if_all_gone()

    def step(self) -> list[RowEvent]:
        """A token of every row that decodes, or its failure. Rows that end, or fail, are gone."""
        if not self._members:
            self._join()
            if not self._members:
                return []
            self._logits = self._forward()
        step = self._sampled or self._sample()
        self._sampled = None
        self._drop_ended()
        self._join()
        if self._members:
            self._logits = self._forward()
            if self._ahead:
                self._sampled = self._sample()
        return self._read(step)

    def _join(self) -> None:
        if not self._joining:
            return
        self._cache = join(self._cache, [member.row.cache for member in self._joining])
        for member in self._joining:
            member.row.cache = []
        last_tokens = _tokens([member.row.last_token for member in self._joining])
        self._inputs = mx.concatenate([self._inputs, last_tokens])
        self._members = [*self._members, *self._joining]
        self._joining = []

    def _drop_ended(self) -> None:
        """Go on with the rows that have tokens left; those from the end take the places of the others."""
        staying = [index for index, member in enumerate(self._members) if member.left and not member.gone]
        if len(staying) == len(self._members):
            return
        rows = list(range(len(staying)))
        movers = [index for index in staying if index >= len(staying)]
        for hole in set(rows).difference(staying):
            rows[hole] = movers.pop()
        self._members = [self._members[index] for index in rows]
        if not rows:
            self._inputs, self._cache = _tokens([]), []
            return
        self._inputs = self._inputs[mx.array(rows)]
        for layer in self._cache:
            layer.filter(rows)

    def _free_if_all_gone(self) -> None:
        if all(member.gone for member in self._members):
            self._members, self._cache, self._sampled = [], [], None
            self._inputs, self._logits = _tokens([]), mx.zeros([0])

    def _forward(self) -> mx.array:
        offsets = share_offsets(self._cache)
        for rope in self._rotary:
            rope.expect(offsets)
        logits: mx.array = self._model(self._inputs[:, None], cache=self._cache)
        return logits[:, -1, :]

    def _sample(self) -> _Step:
        """Have every member's next token computed."""
        logits, contexts, failures = self._process(self._logits)
        tokens = self._draw(logits)
        alternatives = {
            member.row.row_id: _alternatives(logits[index], tokens[index], member.row.top_logprobs)
            for index, member in enumerate(self._members)
            if member.row.top_logprobs is not None
        }
        mx.async_eval(tokens, [list(each) for each in alternatives.values()], contexts)
        for member in self._members:
            member.left -= 1
        at_limit = frozenset(member.row.row_id for member in self._members if not member.left)
        self._inputs = tokens
        return _Step(self._members, tokens, alternatives, failures, at_limit)

    def _process(self, logits: mx.array) -> tuple[mx.array, list[mx.array], dict[int, str]]:
        """Logits after the rows' processors, the tokens that these were shown, and failures by row."""
        contexts: list[mx.array] = []
        failures: dict[int, str] = {}
        if not any(member.context for member in self._members):
            return logits, contexts, failures
        processed = []
        for index, member in enumerate(self._members):
            row_logits = logits[index : index + 1]
            if member.context is not None and not member.gone:
                contexts.append(member.context.update_and_fetch(self._inputs[index : index + 1]))
                try:
                    row_logits = _apply(member.row.processors, contexts[-1], row_logits)
                except Exception as error:  # a user's code, and other rows go on
                    failures[member.row.row_id] = (
                        f"a logits processor failed with {type(error).__name__}: {one_line(error)}"
                    )
            processed.append(row_logits)
        return mx.concatenate(processed, axis=0), contexts, failures

    def _draw(self, logits: mx.array) -> mx.array:
        """Tokens ``[rows]``; those of rows with the same sampler in one call."""
        by_sampler: dict[Sampler, list[int]] = {}
        for index, member in enumerate(self._members):
            by_sampler.setdefault(member.row.sampler, []).append(index)
        if len(by_sampler) == 1:
            (sampler,) = by_sampler
            return _draw(sampler, logits)
        drawn = [_draw(sampler, logits[mx.array(indices)]) for sampler, indices in by_sampler.items()]
        order = [index for indices in by_sampler.values() for index in indices]
        return mx.concatenate(drawn)[mx.argsort(mx.array(order))]

    def _read(self, step: _Step) -> list[RowEvent]:
        """Wait for the tokens of ``step``, and part with rows that it ended."""
        events = step.read(self._end_tokens)
        ended = {event.row_id for event in events if not isinstance(event, Sampled) or event.finish_reason}
        for member in self._members:
            member.gone |= member.row.row_id in ended
        self._free_if_all_gone()
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_CLEANINGS == 0:
            mx.clear_cache()
        return events


class _Member:
    """A row of the batch. ``left``: tokens of it that are not sampled yet. ``gone``: nobody wants them."""

    def __init__(self, row: DecodingRow) -> None:
        self.row = row
        self.left = row.max_tokens
        self.gone = False
        self.context = TokenBuffer(list(row.before)) if row.processors else None


class _Alternatives(NamedTuple):
    """Log probabilities of one row: of the sampled token, and the likeliest ones with their ids."""

    sampled: mx.array
    ids: mx.array
    values: mx.array

    def read(self) -> Logprobs:
        ids: Any = self.ids.tolist()
        values: Any = self.values.tolist()
        sampled: Any = self.sampled.item()
        return Logprobs(sampled, tuple(zip(ids, values, strict=True)))


class _Step(NamedTuple):
    """A token for each of ``members``, which MLX has begun to compute, and what was asked beside it.

    ``at_limit``: rows that can have no further one.
    """

    members: list[_Member]
    tokens: mx.array
    alternatives: dict[int, _Alternatives]
    failures: dict[int, str]
    at_limit: frozenset[int]

    def read(self, end_tokens: frozenset[int]) -> list[RowEvent]:
        """Wait for the tokens."""
        tokens: Any = self.tokens.tolist()
        return [
            self._event(member.row.row_id, token, ended=token in end_tokens)
            for member, token in zip(self.members, tokens, strict=True)
            if not member.gone
        ]

    def _event(self, row_id: int, token: int, *, ended: bool) -> RowEvent:
        if row_id in self.failures:
            return RowFailed(row_id, self.failures[row_id])
        reason: FinishReason | None = "length" if row_id in self.at_limit else None
        asked = self.alternatives.get(row_id)
        return Sampled(row_id, token, "stop" if ended else reason, asked.read() if asked else None)


def _tokens(ids: list[int]) -> mx.array:
    return mx.array(ids, dtype=mx.uint32)


def _draw(sampler: Sampler, logits: mx.array) -> mx.array:
    # The likeliest token is the same before and after normalising, which costs time with a large vocabulary.
    return sampler(logits if sampler is greedy else _normalised(logits))


def _normalised(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _alternatives(logits: mx.array, token: mx.array, count: int) -> _Alternatives:
    logprobs = _normalised(logits.astype(mx.float32)[None])
    ids, values = rank(logprobs, count)
    return _Alternatives(logprobs[0, token], ids[0], values[0])


def _apply(processors: tuple[LogitsProcessor, ...], tokens: mx.array, logits: mx.array) -> mx.array:
    processed: Any = logits
    for processor in processors:
        processed = processor(tokens, processed)
    if processed.shape != logits.shape:
        raise ValueError(f"it returned the shape {processed.shape} for {logits.shape}")
    return processed  # type: ignore[no-any-return]
