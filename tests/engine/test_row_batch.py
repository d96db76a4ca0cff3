from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from support.backend_runs import GREEDY, BackendRun, Outcome, generate, generate_apart
from support.tiny_models import ARCHITECTURES, LLAMA, VOCABULARY_SIZE, write_model

from mlxcel_trio.core.sampling import SamplingParameters
from mlxcel_trio.engine.backend import LogitsProcessor, Prefilled, Row, Sampled
from mlxcel_trio.engine.decode_batch import DecodeBatch
from mlxcel_trio.engine.prefiller import Feeding, Prefiller
from mlxcel_trio.engine.row_batch import RowBatch
from mlxcel_trio.engine.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CHUNK = 16
END = 63


def loaded(directory: Path, config: dict[str, Any]) -> Any:
    return load_weights(write_model(directory, config), "auto", fast_blas=True).model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(tmp_path_factory.mktemp("llama"), LLAMA)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(tmp_path_factory.mktemp("any"), ARCHITECTURES[request.param])


def rows_of(
    model: Any, *, parallel: int = 8, end_tokens: Sequence[int] = (), ahead: bool = False
) -> RowBatch:
    return RowBatch(
        Prefiller(model),
        DecodeBatch(model, end_tokens=frozenset(end_tokens), ahead=ahead),
        parallel=parallel,
        prefill_chunk_size=CHUNK,
        vocabulary_size=VOCABULARY_SIZE,
        clock=itertools.count().__next__,
    )


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * index * index + 3 * salt + index) % VOCABULARY_SIZE for index in range(length)]


def row(
    row_id: int,
    length: int = 5,
    max_tokens: int = 12,
    sampling: SamplingParameters = GREEDY,
    processors: tuple[LogitsProcessor, ...] = (),
) -> Row:
    return Row(row_id, prompt(length, row_id), max_tokens, sampling, logits_processors=processors)


# Shorter and longer than a chunk, and on its edges.
LENGTHS = [1, 2, 15, 16, 17, 18, 40, 100]


def mixed_rows() -> list[Row]:
    return [row(row_id, length, 20) for row_id, length in enumerate(LENGTHS)]


def test_rows_together_say_what_each_says_alone(any_model: Any) -> None:
    batch = rows_of(any_model)
    together = generate(batch, *mixed_rows())
    apart = generate_apart(batch, *mixed_rows())
    assert together == apart
    assert {len(outcome.tokens) for outcome in together} == {20}
    assert len({tuple(outcome.tokens) for outcome in together}) == len(LENGTHS)


def test_the_reference_agrees(any_model: Any) -> None:
    """Feeding whole sequences anew for every token needs no cache, chunk or batch."""
    tokens = prompt(40)
    for _ in range(10):
        tokens += np.array(mx.argmax(any_model(mx.array([tokens]))[:, -1], axis=-1)).tolist()
    (outcome,) = generate(rows_of(any_model), Row(0, prompt(40), 10, GREEDY))
    assert outcome.tokens == tokens[40:]


def test_rows_that_join_later_disturb_nobody(model: Any) -> None:
    expected = generate_apart(rows_of(model), *mixed_rows())
    run = BackendRun(rows_of(model))
    for joining in mixed_rows():
        run.insert(joining)
        run.step()
        run.step()
    assert list(run.finish().values()) == expected


def test_a_cache_takes_the_place_of_the_prompt_before_it_and_is_not_changed(any_model: Any) -> None:
    whole = prompt(60)
    (expected,) = generate(rows_of(any_model), Row(0, whole, 10, GREEDY))
    batch = rows_of(any_model)
    prefiller = batch._prefiller
    feeding = prefiller.feed([whole[:20]], [prefiller.new_cache()])
    assert feeding.advance(math.inf, time.perf_counter)
    (cache,) = feeding.caches()
    sizes = [layer.nbytes for layer in cache]
    for rest in (whole[20:], whole[20:]):
        (outcome,) = generate(batch, Row(0, rest, 10, GREEDY, cache=cache))
        assert outcome.tokens == expected.tokens
        assert outcome.progress[-1] == (40, 40)
        assert [layer.nbytes for layer in cache] == sizes
    together = generate(batch, Row(0, whole, 10, GREEDY), Row(1, whole[20:], 10, GREEDY, cache=cache))
    assert [outcome.tokens for outcome in together] == [expected.tokens] * 2


def test_prefill_reports_every_chunk_up_to_the_whole_prompt(model: Any) -> None:
    (outcome,) = generate(rows_of(model), row(0, length=40))
    assert outcome.progress == [(16, 40), (32, 40), (40, 40)]


@pytest.mark.parametrize("length", LENGTHS)
def test_progress_grows_to_the_total(model: Any, length: int) -> None:
    (outcome,) = generate(rows_of(model), row(0, length=length))
    done = [done for done, total in outcome.progress if total == length]
    assert len(done) == len(outcome.progress)
    assert done == sorted(set(done))
    assert done[-1] == length


def test_running_rows_go_on_while_a_long_prompt_is_prefilled(model: Any) -> None:
    run = BackendRun(rows_of(model))
    run.insert(row(0, max_tokens=100))
    run.until(lambda outcomes: bool(outcomes[0].tokens))
    run.insert(row(1, length=100))
    while not run.outcomes[1].tokens:
        events = run.step()
        assert [event.row_id for event in events if isinstance(event, Sampled)].count(0) == 1
        assert sum(isinstance(event, Prefilled) for event in events) <= 1
    assert [done for done, _ in run.outcomes[1].progress] == [16, 32, 48, 64, 80, 96, 100]


def test_running_rows_get_one_token_in_each_step_whatever_joins_them(model: Any) -> None:
    run = BackendRun(rows_of(model, parallel=16))
    run.insert(row(0, max_tokens=100), row(1, max_tokens=100))
    run.until(lambda outcomes: all(outcome.tokens for outcome in outcomes.values()))
    for row_id, length in enumerate([1, 40, 5, 5, 16, 17, 100, 3], start=2):
        run.insert(row(row_id, length, 100))
        running = [row_id for row_id, outcome in run.outcomes.items() if outcome.tokens]
        sampled = [event.row_id for event in run.step() if isinstance(event, Sampled)]
        assert sampled[: len(running)] == running
        assert len(set(sampled)) == len(sampled)


def test_the_step_after_one_that_ended_prompts_does_no_prefill_and_brings_their_first_tokens(
    model: Any,
) -> None:
    run = BackendRun(rows_of(model))
    run.insert(row(0, max_tokens=100))
    run.until(lambda outcomes: bool(outcomes[0].tokens))
    run.insert(row(1, 7, 100), row(2, 8, 100), row(3, 400))
    assert run.step() == [Prefilled(1, 7, 7), Prefilled(2, 8, 8), Sampled(0, run.outcomes[0].tokens[-1])]
    first_tokens = run.step()
    assert [(type(event), event.row_id) for event in first_tokens] == [
        (Sampled, 0),
        (Sampled, 1),
        (Sampled, 2),
    ]
    assert [event for event in run.step() if isinstance(event, Prefilled)] == [Prefilled(3, 16, 400)]
    # Nobody's prompt ended in that step, so the next one goes on.
    assert [event.done for event in run.step() if isinstance(event, Prefilled)] == [32]


def test_prompts_go_on_when_rows_leave_before_their_first_tokens(model: Any) -> None:
    run = BackendRun(rows_of(model))
    run.insert(row(0), row(1, 60))
    run.step()
    assert run.remove(0).progress == [(5, 5)]
    assert generate_apart(rows_of(model), row(1, 60)) == list(run.finish().values())


def test_a_short_prompt_is_answered_before_a_long_one_ahead_of_it(model: Any) -> None:
    run = BackendRun(rows_of(model))
    run.insert(row(0, length=400), row(1, length=5))
    run.until(lambda outcomes: bool(outcomes[1].tokens), max_steps=5)
    assert not run.outcomes[0].tokens


def test_rows_beyond_the_parallel_ones_wait_their_turn(model: Any) -> None:
    rows = [row(row_id, length, max_tokens=4) for row_id, length in enumerate([5, 40, 5, 40, 40, 5])]
    run = BackendRun(rows_of(model, parallel=2))
    run.insert(*rows)
    begun: list[int] = []
    while not all(outcome.ended for outcome in run.outcomes.values()):
        for event in run.step():
            if isinstance(event, Prefilled) and event.row_id not in begun:
                begun.append(event.row_id)
        running = [outcome for outcome in run.outcomes.values() if outcome.progress and not outcome.ended]
        assert len(running) <= 2
    assert begun == [0, 1, 2, 3, 4, 5]
    assert list(run.outcomes.values()) == generate_apart(rows_of(model), *rows)


def test_every_stage_can_be_left_without_disturbing_the_others(model: Any) -> None:
    kept = [row(0, 5, 20), row(1, 40, 20), row(2, 17, 20)]
    expected = generate_apart(rows_of(model), *kept)
    run = BackendRun(rows_of(model, parallel=6))
    decoding, prefilling, scheduled, waiting = row(10, 5, 99), row(11, 300), row(12, 300), row(13)
    run.insert(decoding)
    run.until(lambda outcomes: len(outcomes[10].tokens) > 3)
    run.insert(prefilling, scheduled, *kept, waiting)
    run.step()
    assert run.remove(13).progress == [], "left while it waited"
    assert run.remove(12).progress == [], "left before its prefill began"
    run.until(lambda outcomes: len(outcomes[11].progress) >= 2)
    assert not run.remove(11).tokens, "left in the middle of its prefill"
    run.until(lambda outcomes: bool(outcomes[0].tokens))
    assert len(run.remove(10).tokens) < 99, "left while it decoded"
    assert list(run.finish().values()) == expected


def test_a_burst_of_eight_chunks_is_one_step(model: Any) -> None:
    run = BackendRun(rows_of(model, parallel=32))
    run.insert(*[row(row_id, CHUNK // 2) for row_id in range(20)])
    assert [event.row_id for event in run.step()] == list(range(16))
    assert [event.row_id for event in run.step()] == list(range(16)), "first tokens"
    assert [event.row_id for event in run.step() if isinstance(event, Prefilled)] == list(range(16, 20))


def test_unknown_and_ended_rows_can_be_removed(model: Any) -> None:
    batch = rows_of(model)
    batch.remove(5)
    expected = generate(batch, row(0))
    batch.remove(0)
    assert generate(batch, row(0)) == expected


def test_all_rows_can_leave_and_others_come(model: Any) -> None:
    batch = rows_of(model)
    run = BackendRun(batch)
    run.insert(*mixed_rows())
    run.until(lambda outcomes: all(outcome.tokens for outcome in outcomes.values()))
    for row_id in list(run.outcomes):
        run.remove(row_id)
    assert batch.step() == []
    assert generate(batch, *mixed_rows()) == generate_apart(rows_of(model), *mixed_rows())


def test_a_row_ends_by_length_after_exactly_its_tokens(model: Any) -> None:
    outcomes = generate(rows_of(model), row(0, max_tokens=1), row(1, max_tokens=7))
    assert [(len(outcome.tokens), outcome.finish_reason) for outcome in outcomes] == [
        (1, "length"),
        (7, "length"),
    ]


def end_after(model: Any, count: int) -> tuple[list[int], int]:
    """What row 0 says in ``count`` tokens, and one of them that it says first at the end."""
    (outcome,) = generate(rows_of(model), row(0, max_tokens=60))
    for end in range(count, 60):
        if outcome.tokens[end] not in outcome.tokens[:end]:
            return outcome.tokens[: end + 1], outcome.tokens[end]
    raise AssertionError("the model repeats itself too soon for this test")


def test_an_end_token_stops_the_row_and_is_its_last_event(model: Any) -> None:
    tokens, end = end_after(model, 2)
    (outcome,) = generate(
        rows_of(model, end_tokens=[END - 1 if end == END else END, end]), row(0, max_tokens=60)
    )
    assert (outcome.tokens, outcome.finish_reason) == (tokens, "stop")


def test_an_end_token_at_the_limit_is_a_stop(model: Any) -> None:
    tokens, end = end_after(model, 2)
    (outcome,) = generate(rows_of(model, end_tokens=[end]), row(0, max_tokens=len(tokens)))
    assert (outcome.tokens, outcome.finish_reason) == (tokens, "stop")


WARM = SamplingParameters(temperature=1.0, top_p=0.95, seed=11)


def test_a_seed_repeats_its_answer_alone_and_in_any_company(model: Any) -> None:
    batch = rows_of(model)
    seeded = row(0, 20, 30, WARM)
    (alone,) = generate(batch, seeded)
    assert len(set(alone.tokens)) > 3
    companies: list[list[Row]] = [
        [row(1, 90, 30)],
        [row(1, 3, 30, SamplingParameters()), row(2, 40, 30, SamplingParameters(seed=11))],
        [row(row_id, 9, 30, SamplingParameters(temperature=0.7, min_p=0.1)) for row_id in range(1, 8)],
    ]
    for company in companies:
        assert generate(batch, seeded, *company)[0] == alone
        assert generate(batch, *company, seeded)[-1] == alone


def test_other_seeds_and_no_seed_answer_otherwise(model: Any) -> None:
    samplings = [SamplingParameters(seed=seed) for seed in (1, 2, None, None)]
    same_prompt = [Row(row_id, prompt(20), 30, sampling) for row_id, sampling in enumerate(samplings)]
    outcomes = generate(rows_of(model), *same_prompt)
    assert len({tuple(outcome.tokens) for outcome in outcomes}) == 4


def record(seen: list[list[int]]) -> LogitsProcessor:
    def processor(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(tokens.tolist())  # type: ignore[arg-type]
        assert logits.shape == (1, VOCABULARY_SIZE)
        return logits

    return processor


@pytest.mark.parametrize("length", LENGTHS)
def test_a_processor_sees_the_prompt_and_all_tokens_so_far(model: Any, length: int) -> None:
    seen: list[list[int]] = []
    observed = row(0, length, 6, processors=(record(seen),))
    outcome, other = generate(rows_of(model), observed, row(1, 30, 6))
    assert other == generate(rows_of(model), row(1, 30, 6))[0]
    assert seen == [[*observed.prompt, *outcome.tokens[:count]] for count in range(6)]


def test_processors_decide_in_order_and_only_for_their_row(model: Any) -> None:
    def only(*allowed: int) -> LogitsProcessor:
        def processor(tokens: mx.array, logits: mx.array) -> mx.array:
            ids = mx.arange(VOCABULARY_SIZE)
            mask = mx.any(ids[:, None] == mx.array(allowed)[None], axis=1)
            return mx.where(mask, logits, -mx.inf)

        return processor

    def steer(tokens: mx.array, logits: mx.array) -> mx.array:
        """Runs after the mask and finds its way among what is allowed."""
        return mx.where(mx.isfinite(logits), mx.arange(VOCABULARY_SIZE), logits)

    steered = row(0, processors=(only(3, 9, 5), steer))
    warm = row(1, sampling=SamplingParameters(seed=1), processors=(only(7, 8),))
    outcomes = generate(rows_of(model), steered, warm, row(2))
    assert set(outcomes[0].tokens) == {9}
    assert set(outcomes[1].tokens) <= {7, 8}
    assert outcomes[2] == generate(rows_of(model), row(2))[0]


def failing(after: int) -> LogitsProcessor:
    """Raises when ``after`` tokens have been sampled; the rows' prompts have five."""

    def processor(tokens: mx.array, logits: mx.array) -> mx.array:
        if tokens.size >= 5 + after:
            raise RuntimeError("no rule\nfor this")
        return logits

    return processor


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_bad_processor_ends_its_own_row_only_and_no_token_is_lost(model: Any, after: int) -> None:
    batch = rows_of(model)
    expected = generate_apart(batch, row(0), row(1), row(2, 40), row(3))
    bad = row(1, processors=(failing(after),))
    run = BackendRun(batch)
    run.insert(row(0), bad, row(2, 40))
    run.step()
    run.insert(row(3))
    outcomes = run.finish()
    assert outcomes[1].failure == "a logits processor failed with RuntimeError: no rule for this"
    assert outcomes[1].tokens == expected[1].tokens[:after]
    assert [outcomes[row_id] for row_id in (0, 2, 3)] == [expected[0], expected[2], expected[3]]


def test_two_bad_rows_fail_each_for_itself(model: Any) -> None:
    batch = rows_of(model)
    first, second, good = generate(
        batch, row(0, processors=(failing(0),)), row(1, processors=(failing(3),)), row(2)
    )
    assert (first.tokens, len(second.tokens)) == ([], 3)
    assert first.failure
    assert second.failure
    assert good == generate(batch, row(2))[0]


def test_a_processor_that_fails_only_after_the_end_does_no_harm(model: Any) -> None:
    (outcome,) = generate(rows_of(model), row(0, max_tokens=4, processors=(failing(4),)))
    assert (len(outcome.tokens), outcome.finish_reason, outcome.failure) == (4, "length", None)


@pytest.mark.parametrize("answer", [None, 3, "logits", mx.zeros((1, 3)), mx.zeros((2, VOCABULARY_SIZE))])
def test_a_processor_that_returns_no_logits_fails_its_row(model: Any, answer: object) -> None:
    outcome, good = generate(rows_of(model), row(0, processors=(lambda tokens, logits: answer,)), row(1))
    assert outcome.failure is not None
    assert "logits processor" in outcome.failure
    assert good == generate(rows_of(model), row(1))[0]


@pytest.mark.parametrize(
    "bad",
    [
        Row(0, [], 5, GREEDY),
        Row(0, [1], 0, GREEDY),
        Row(0, [1, VOCABULARY_SIZE], 5, GREEDY),
        Row(0, [-1], 5, GREEDY),
        Row(0, [1], 5, GREEDY, cache=[]),
        Row(0, [1], 5, GREEDY, cache=[object()]),
        Row(0, prompt(40), 5, GREEDY, cache=[None, None]),
    ],
)
def test_a_row_that_cannot_run_fails_alone(model: Any, bad: Row) -> None:
    outcome, good = generate(rows_of(model), bad, row(1))
    assert outcome.failure
    assert not outcome.tokens
    assert good == generate(rows_of(model), row(1))[0]


def test_a_refused_row_that_is_removed_is_not_heard_of(model: Any) -> None:
    batch = rows_of(model)
    batch.insert(Row(0, [], 5, GREEDY))
    batch.remove(0)
    assert batch.step() == []


@pytest.mark.parametrize("length", [7, 40])
def test_a_failure_while_feeding_is_that_rows(
    model: Any, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    batch = rows_of(model)
    feed = batch._prefiller.feed

    def out_of_memory(prompts: list[list[int]], caches: list[Any]) -> Feeding:
        if any(tokens[0] == prompt(length, 1)[0] for tokens in prompts):
            raise RuntimeError("[malloc] Unable to allocate")
        return feed(prompts, caches)

    monkeypatch.setattr(batch._prefiller, "feed", out_of_memory)
    first, bad, last = generate(batch, row(0, length), row(1, length), row(2, length))
    assert bad == Outcome(failure="prefill failed with RuntimeError: [malloc] Unable to allocate")
    assert bad.progress == []
    assert [first, last] == generate_apart(rows_of(model), row(0, length), row(2, length))
