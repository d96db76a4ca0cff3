"""DecodeBatch against a reference that feeds whole sequences anew for every token."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import LLAMA, VOCABULARY_SIZE, write_model

from mlxcel_trio.core.sampling import SamplingParameters
from mlxcel_trio.engine.backend import LogitsProcessor, RowEvent, RowFailed, Sampled
from mlxcel_trio.engine.decode_batch import DecodeBatch, DecodingRow
from mlxcel_trio.engine.prefiller import Prefiller
from mlxcel_trio.engine.rotary import SharedRoPE, share_rotary
from mlxcel_trio.engine.sampler import RandomSampler, Sampler, greedy
from mlxcel_trio.engine.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from mlxcel_trio.engine.caches import Cache

LENGTHS = [5, 1, 17, 40, 2]
TOKENS = 12


def prompt_of(row_id: int) -> list[int]:
    return [(7 * i * i + 3 * row_id + i) % VOCABULARY_SIZE for i in range(LENGTHS[row_id % len(LENGTHS)])]


def unlikeliest(logprobs: mx.array) -> mx.array:
    return mx.argmin(logprobs, axis=-1)


class Model:
    """The tiny model, what it says, and how many rows each call had.

    Its layers share rotary embeddings, and those of the ``reference`` do not.
    """

    def __init__(self, model: Any, reference: Any) -> None:
        self._model = model
        self._reference = reference
        self._rotary = share_rotary(model)
        self.widths: list[int] = []
        self._answers: dict[tuple[int, Sampler], list[int]] = {}

    def __call__(self, inputs: mx.array, cache: Cache) -> mx.array:
        self.widths.append(inputs.shape[0])
        logits: mx.array = self._model(inputs, cache=cache)
        return logits

    def batch(self, ahead: bool, end_tokens: Iterable[int] = ()) -> DecodeBatch:
        self.widths = []
        model: Any = self
        return DecodeBatch(model, end_tokens=frozenset(end_tokens), ahead=ahead, rotary=self._rotary)

    def row(
        self,
        row_id: int,
        max_tokens: int = TOKENS,
        sampler: Sampler = greedy,
        processors: tuple[LogitsProcessor, ...] = (),
        top_logprobs: int | None = None,
    ) -> DecodingRow:
        *before, last = prompt_of(row_id)
        prefiller = Prefiller(self._model)
        cache = prefiller.new_cache()
        if before:
            feeding = prefiller.feed([before], [cache])
            assert feeding.advance(math.inf, time.perf_counter)
            (cache,) = feeding.caches()
        return DecodingRow(row_id, last, before, cache, max_tokens, sampler, processors, top_logprobs)

    def logits(self, tokens: list[int]) -> mx.array:
        """Of the next token, ``[1, vocabulary]``, without any cache."""
        logits: mx.array = self._reference(mx.array([tokens]))
        return logits[:, -1]

    def answer(self, row_id: int, sampler: Sampler = greedy) -> list[int]:
        """What a row says alone."""
        if (row_id, sampler) not in self._answers:
            tokens = prompt_of(row_id)
            for _ in range(TOKENS):
                tokens += np.array(sampler(self.logits(tokens))).tolist()
            self._answers[row_id, sampler] = tokens[-TOKENS:]
        return self._answers[row_id, sampler]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = write_model(tmp_path_factory.mktemp("llama"), LLAMA)
    return Model(*(load_weights(directory, "auto", fast_blas=True).model for _ in range(2)))


@pytest.fixture(params=[False, True], ids=["behind", "ahead"], scope="module")
def ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def steps(batch: DecodeBatch, count: int = 100) -> dict[int, list[RowEvent]]:
    """The rows' events of so many steps, or until there are none."""
    events: defaultdict[int, list[RowEvent]] = defaultdict(list)
    for _ in range(count):
        step = batch.step()
        if not step:
            break
        for event in step:
            events[event.row_id].append(event)
    return events


def run(batch: DecodeBatch, *rows: DecodingRow) -> dict[int, list[RowEvent]]:
    for row in rows:
        batch.add(row)
    return steps(batch)


def tokens_in(events: list[RowEvent]) -> list[int]:
    """The tokens; a finish reason or failure comes last or not at all."""
    assert all(isinstance(event, Sampled) and not event.finish_reason for event in events[:-1])
    return [event.token for event in events if isinstance(event, Sampled)]


CHANGES = st.tuples(
    st.lists(st.integers(1, TOKENS), max_size=3),  # joining rows' max_tokens
    st.lists(st.integers(0, 9), max_size=2),  # rows to remove, running or not
    st.integers(0, 3),  # steps
)


@settings(max_examples=50, deadline=None)
@given(schedule=st.lists(CHANGES, min_size=1, max_size=5))
def test_rows_say_what_they_say_alone_whoever_comes_and_goes(
    model: Model, ahead: bool, schedule: list[tuple[list[int], list[int], int]]
) -> None:
    batch = model.batch(ahead)
    heard: defaultdict[int, list[RowEvent]] = defaultdict(list)
    limits: dict[int, int] = {}
    removed: set[int] = set()
    for joining, leaving, count in [*schedule, ([], [], 100)]:
        for limit in joining:
            batch.add(model.row(len(limits), limit))
            limits[len(limits)] = limit
        for row_id in leaving:
            batch.remove(row_id)
        removed.update(row_id for row_id in leaving if row_id in limits)
        for row_id, events in steps(batch, count).items():
            assert row_id not in removed
            heard[row_id] += events
    for row_id, limit in limits.items():
        tokens = tokens_in(heard[row_id])
        assert tokens == model.answer(row_id)[: len(tokens)]
        if row_id not in removed:
            assert len(tokens) == limit
            assert heard[row_id][-1] == Sampled(row_id, tokens[-1], "length")
    assert batch._cache == []


def test_no_step_is_computed_in_vain_for_rows_that_end_by_length(model: Model, ahead: bool) -> None:
    run(model.batch(ahead), model.row(0, 7))
    assert model.widths == [1] * 7
    run(model.batch(ahead), model.row(0, 2), model.row(1, 5), model.row(2, 3), model.row(3, 1))
    assert model.widths == [4, 3, 2, 1, 1]


def test_sines_and_cosines_of_a_step_are_computed_once_for_all_layers(
    model: Model, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [model.row(row_id, 6) for row_id in range(2)]
    made: list[mx.array] = []
    rotation: Any = SharedRoPE._rotation

    def counted(rope: SharedRoPE, x: mx.array, offset: mx.array) -> object:
        made.append(offset)
        return rotation(rope, x, offset)

    monkeypatch.setattr(SharedRoPE, "_rotation", counted)
    run(model.batch(ahead), *rows)
    first = np.array([len(row.before) for row in rows])
    assert [np.array(each).tolist() for each in made] == [(first + step).tolist() for step in range(6)]


def test_joiners_share_the_steps_of_those_that_run(model: Model, ahead: bool) -> None:
    batch = model.batch(ahead)
    batch.add(model.row(0, 6))
    steps(batch, 2)
    events = run(batch, model.row(1, 4), model.row(2, 2))
    assert [len(events[row_id]) for row_id in (0, 1, 2)] == [4, 4, 2]
    assert model.widths == [1, 1, 1, 3, 3, 2, 1]


def end_of(model: Model, row_id: int = 0) -> tuple[int, int]:
    """A token that the row says for the first time in its midst, and how many it has then said."""
    answer = model.answer(row_id)
    said = next(count for count in range(4, TOKENS) if answer[count - 1] not in answer[: count - 1])
    return answer[said - 1], said


def test_an_end_token_costs_one_more_step_at_most(model: Model, ahead: bool) -> None:
    end, said = end_of(model)
    for max_tokens, one_more in ((TOKENS, 1), (said, 0)):
        batch = model.batch(ahead, [end])
        batch.add(model.row(0, max_tokens))
        events = steps(batch, said)[0]
        assert batch._cache == []
        assert batch.step() == []
        assert tokens_in(events) == model.answer(0)[:said]
        assert events[-1] == Sampled(0, end, "stop")
        assert said <= len(model.widths) <= said + one_more
    assert end not in model.answer(1)
    run(model.batch(ahead, [end]), model.row(0), model.row(1))
    assert len(model.widths) == TOKENS
    assert model.widths.count(2) <= said + 1


def test_a_step_is_handed_over_once_the_tokens_before_it_are_read_or_ahead_of_that(
    model: Model, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over: list[object] = []
    async_eval = mx.async_eval

    def recorder(*arrays: Any) -> None:
        handed_over.append(arrays)
        async_eval(*arrays)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(mx, "async_eval", recorder)
    batch = model.batch(ahead)
    batch.add(model.row(0, 5))
    counts = [len(handed_over) for _ in range(5) if batch.step()]
    assert counts == ([2, 3, 4, 5, 5] if ahead else [1, 2, 3, 4, 5])


def recording(seen: list[list[int]], fail_after: int = 100) -> LogitsProcessor:
    def processor(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(np.array(tokens).tolist())
        if len(seen) > fail_after:
            raise RuntimeError("no rule\nfor this")
        return logits

    return processor


def test_processors_are_called_once_a_token_and_hardly_after_the_end(model: Model, ahead: bool) -> None:
    end, said = end_of(model)
    stopped: list[list[int]] = []
    limited: list[list[int]] = []
    rows = [model.row(0, processors=(recording(stopped),)), model.row(1, 7, processors=(recording(limited),))]
    events = run(model.batch(ahead, [end]), *rows, model.row(2))
    assert len(tokens_in(events[0])) == said
    in_vain = [*prompt_of(0), *model.answer(0)[:said]]
    shown = [in_vain[:count] for count in range(LENGTHS[0], len(in_vain))]
    assert stopped in ([shown, [*shown, in_vain]] if ahead else [shown])
    assert limited == [[*prompt_of(1), *model.answer(1)[:count]] for count in range(7)]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_failing_processor_ends_its_row_and_no_other(model: Model, ahead: bool, after: int) -> None:
    bad = model.row(1, processors=(recording([], fail_after=after),))
    good = model.row(2, processors=(recording([]),))
    events = run(model.batch(ahead), model.row(0), bad, good, model.row(3))
    assert tokens_in(events[1]) == model.answer(1)[:after]
    assert events[1][after:] == [
        RowFailed(1, "a logits processor failed with RuntimeError: no rule for this")
    ]
    assert [tokens_in(events[row_id]) for row_id in (0, 2, 3)] == [model.answer(row) for row in (0, 2, 3)]


def log_softmax(logits: mx.array) -> NDArray[np.float64]:
    values = np.array(logits, np.float64)[0]
    return np.asarray(values - np.log(np.sum(np.exp(values))))


def halve(tokens: mx.array, logits: mx.array) -> mx.array:
    return logits / 2


def test_log_probabilities_are_the_models_own(model: Model, ahead: bool) -> None:
    asked = {0: None, 1: 0, 2: 3, 3: VOCABULARY_SIZE, 4: 5}
    rows = [model.row(row_id, top_logprobs=count) for row_id, count in asked.items()]
    rows[2].sampler = unlikeliest
    rows[4] = model.row(4, processors=(halve,), top_logprobs=asked[4])
    heard = run(model.batch(ahead), *rows, model.row(5, 3))
    for row_id, count in asked.items():
        tokens = prompt_of(row_id)
        for event in heard[row_id]:
            assert isinstance(event, Sampled)
            logits = model.logits(tokens)
            expected = log_softmax(logits / 2 if row_id == 4 else logits)
            tokens.append(event.token)
            if count is None:
                assert event.logprobs is None
                continue
            assert event.logprobs is not None
            ids = [token for token, _ in event.logprobs.top]
            values = [value for _, value in event.logprobs.top]
            assert event.logprobs.sampled == pytest.approx(expected[event.token], abs=1e-4)
            assert len(set(ids)) == count
            assert values == sorted(values, reverse=True)
            assert values == pytest.approx(expected[ids], abs=1e-4)
            assert values == pytest.approx(np.sort(expected)[::-1][:count], abs=1e-4)


def test_every_row_is_drawn_with_its_own_sampler(model: Model, ahead: bool) -> None:
    def seeded(seed: int) -> RandomSampler:
        return RandomSampler(SamplingParameters(temperature=1.0, top_p=0.95, seed=seed))

    unseeded, calls = RandomSampler(SamplingParameters()), []

    def shared(logprobs: mx.array) -> mx.array:
        calls.append(logprobs.shape)
        assert mx.allclose(mx.logsumexp(logprobs, axis=-1), mx.zeros(2), atol=1e-5)
        return unseeded(logprobs)

    samplers: list[Sampler] = [shared, greedy, seeded(1), unlikeliest, shared, seeded(2), greedy, unlikeliest]
    heard = run(
        model.batch(ahead), *[model.row(row_id, sampler=each) for row_id, each in enumerate(samplers)]
    )
    for row_id, sampler in enumerate(samplers):
        if sampler in (greedy, unlikeliest):
            assert tokens_in(heard[row_id]) == model.answer(row_id, sampler)
    for row_id, seed in ((2, 1), (5, 2)):
        tokens = tokens_in(heard[row_id])
        assert tokens == tokens_in(run(model.batch(ahead), model.row(row_id, sampler=seeded(seed)))[row_id])
        assert len(set(tokens)) > 3
    assert calls == [(2, VOCABULARY_SIZE)] * TOKENS
    assert [len(heard[row_id]) for row_id in (0, 4)] == [TOKENS] * 2


def test_the_last_rows_cache_is_free_at_once(model: Model, ahead: bool) -> None:
    batch = model.batch(ahead)
    for row_id in (0, 1):
        batch.add(model.row(row_id))
    steps(batch, 3)
    batch.remove(0)
    batch.remove(7)
    assert batch._cache
    batch.remove(1)
    assert batch._cache == []
    assert batch.step() == []
    assert tokens_in(run(batch, model.row(1))[1]) == model.answer(1)


@pytest.mark.parametrize("done", [0, 1, 4, TOKENS - 1])
def test_a_removed_row_is_not_heard_of_again(model: Model, ahead: bool, done: int) -> None:
    batch = model.batch(ahead)
    for row_id in (0, 1, 2):
        batch.add(model.row(row_id, processors=(recording([]),), top_logprobs=1))
    before = steps(batch, done)
    batch.remove(1)
    after = run(batch, model.row(3))
    assert set(after) == {0, 2, 3}
    assert [len(before[row_id]) for row_id in (0, 1, 2)] == [done] * 3
    assert tokens_in(before[1]) == model.answer(1)[:done]
    for row_id in (0, 2, 3):
        assert tokens_in([*before[row_id], *after[row_id]]) == model.answer(row_id)
