from __future__ import annotations

import gc

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel_trio.core.sampling import SamplingParameters
from mlxcel_trio.engine import sampler
from mlxcel_trio.engine.sampler import RandomSampler, SamplerPool, greedy, keep_likely

# Out of order, so that a rank is not an id.
TABLE = [0.0625, 0.5, 0.0625, 0.25, 0.125]


def logprobs(*rows: list[float]) -> mx.array:
    return mx.log(mx.array(rows))


def kept_ids(row: list[float], **parameters: float) -> set[int]:
    kept = keep_likely(logprobs(row), SamplingParameters(**parameters))  # type: ignore[arg-type]
    values = np.array(kept)[0]
    for token in np.flatnonzero(np.isfinite(values)):
        assert values[token] == pytest.approx(np.log(row[token]), abs=1e-5)
    return {int(token) for token in np.flatnonzero(np.isfinite(values))}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {1, 3, 4}),
        ({"top_k": 5}, {0, 1, 2, 3, 4}),
        ({"top_k": 600}, {0, 1, 2, 3, 4}),
        ({"top_p": 1e-9}, {1}),
        ({"top_p": 1e-300}, {1}),
        ({"top_p": 0.49}, {1}),
        ({"top_p": 0.51}, {1, 3}),
        ({"top_p": 0.74}, {1, 3}),
        ({"top_p": 0.76}, {1, 3, 4}),
        ({"top_p": 0.9999}, {0, 1, 2, 3, 4}),
        ({"min_p": 1.0}, {1}),
        ({"min_p": 0.51}, {1}),
        ({"min_p": 0.49}, {1, 3}),
        ({"min_p": 0.24}, {1, 3, 4}),
        ({"min_p": 0.01}, {0, 1, 2, 3, 4}),
        ({"top_k": 2, "top_p": 0.9}, {1, 3}),
        ({"top_k": 4, "top_p": 0.6}, {1, 3}),
        ({"top_p": 0.76, "min_p": 0.3}, {1, 3}),
        ({"top_k": 3, "top_p": 0.6, "min_p": 0.9}, {1}),
    ],
)
def test_exactly_the_right_tokens_are_kept(parameters: dict[str, float], expected: set[int]) -> None:
    assert kept_ids(TABLE, **parameters) == expected


def test_filters_look_at_the_whole_distribution_not_at_what_another_has_left() -> None:
    # Renormalised over the best two, 0.5 would be two thirds and the second token superfluous.
    assert kept_ids(TABLE, top_k=2, top_p=0.6) == {1, 3}


def test_of_equally_likely_tokens_no_more_than_asked_for_are_kept() -> None:
    assert len(kept_ids([0.125] * 8, top_k=3)) == 3
    assert len(kept_ids([0.125] * 8, top_p=0.45)) == 4


def test_rows_of_a_batch_are_filtered_apart() -> None:
    batch = logprobs([0.9, 0.05, 0.05], [0.3, 0.3, 0.4], [0.05, 0.05, 0.9])
    kept = np.isfinite(np.array(keep_likely(batch, SamplingParameters(top_p=0.8))))
    assert kept.tolist() == [[True, False, False], [True, True, True], [False, False, True]]


def test_masked_tokens_stay_masked() -> None:
    assert kept_ids([0.0, 0.6, 0.0, 0.4], top_k=3, min_p=0.001) == {1, 3}
    assert kept_ids([0.0, 0.6, 0.0, 0.4], top_p=0.999) == {1, 3}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocabulary=st.sampled_from([7, 300, 3000]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 8.0]),
    top_p=st.floats(0.01, 0.99),
)
def test_a_nucleus_is_the_smallest_set_with_its_mass(
    seed: int, vocabulary: int, spread: float, top_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, vocabulary)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    kept = sorted(kept_ids(probabilities.tolist(), top_p=top_p))
    mass = probabilities[kept].sum()
    smallest = probabilities[kept].min()
    assert mass >= top_p - 1e-4
    assert mass - smallest < top_p + 1e-4
    excluded = np.delete(probabilities, kept)
    assert excluded.size == 0 or excluded.max() <= smallest * (1 + 1e-5)


def test_the_result_is_the_same_where_vocabularies_are_sorted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (np.arange(3000, 0, -1) / 4501500).tolist()
    on_cpu = kept_ids(row, top_p=0.3)
    monkeypatch.setattr(sampler, "on_cpu", lambda: False)
    assert kept_ids(row, top_p=0.3) == on_cpu


def shares(parameters: SamplingParameters, row: list[float], draws: int = 20_000) -> list[float]:
    """How often each token is drawn."""
    tokens = RandomSampler(parameters)(mx.broadcast_to(logprobs(row), (draws, len(row))))
    return [float(share) for share in np.bincount(np.array(tokens), minlength=len(row)) / draws]


def test_draws_follow_the_distribution() -> None:
    assert shares(SamplingParameters(seed=1), TABLE) == pytest.approx(TABLE, abs=0.015)


def test_temperature_reshapes_what_the_filters_leave() -> None:
    # Squared and renormalised; the filter saw the original distribution.
    drawn = shares(SamplingParameters(temperature=0.5, top_p=0.76, seed=1), TABLE)
    total = 0.5**2 + 0.25**2 + 0.125**2
    assert drawn == pytest.approx([0, 0.25 / total, 0, 0.0625 / total, 0.015625 / total], abs=0.015)
    assert drawn[0] == drawn[2] == 0


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300, 5e-324])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_a_tiny_temperature_is_greedy(temperature: float, dtype: mx.Dtype) -> None:
    batch = logprobs([0.3, 0.45, 0.25, 0.0], [0.0, 0.1, 0.2, 0.7]).astype(dtype)
    draw = RandomSampler(SamplingParameters(temperature=temperature))
    assert [draw(batch).tolist() for _ in range(5)] == [[1, 3]] * 5


def draws(seed: int | None, count: int = 12) -> list[object]:
    draw = RandomSampler(SamplingParameters(seed=seed))
    return [draw(logprobs([1 / 64] * 64)).tolist() for _ in range(count)]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64, 10**400, -(10**400)])
def test_a_seed_of_any_size_repeats_its_draws(seed: int) -> None:
    assert draws(seed) == draws(seed)


def test_draws_differ_from_step_to_step_and_from_seed_to_seed() -> None:
    assert len({str(draw) for draw in draws(5)}) > 3
    assert len({str(draws(seed)) for seed in (0, 1, -1, 5, 2**40)}) == 5


def test_without_a_seed_every_sampler_draws_its_own() -> None:
    assert draws(None) != draws(None)


def test_another_sampler_changes_no_draw() -> None:
    first, second = (RandomSampler(SamplingParameters(seed=9)) for _ in range(2))
    other = RandomSampler(SamplingParameters())
    flat = logprobs([1 / 64] * 64)
    alone = [first(flat).tolist() for _ in range(8)]
    among = []
    for _ in range(8):
        other(flat)
        among.append(second(flat).tolist())
    assert among == alone


def test_rows_share_a_sampler_when_they_may() -> None:
    pool = SamplerPool()
    free = SamplingParameters(top_p=0.9)
    first = pool.sampler_for(free)
    assert pool.sampler_for(SamplingParameters(top_p=0.9)) is first
    assert pool.sampler_for(SamplingParameters(top_p=0.8)) is not first
    seeded = SamplingParameters(top_p=0.9, seed=1)
    assert pool.sampler_for(seeded) is not pool.sampler_for(seeded)


def test_greedy_rows_share_one_sampler_and_ignore_the_rest() -> None:
    pool = SamplerPool()
    assert pool.sampler_for(SamplingParameters(temperature=0)) is greedy
    assert pool.sampler_for(SamplingParameters(temperature=0, top_p=0.1, min_p=0.5, seed=4)) is greedy
    assert greedy(logprobs([0.25, 0.5, 0.25], [0.4, 0.2, 0.4])).tolist() == [1, 0]


def test_the_pool_keeps_no_sampler_that_no_row_uses() -> None:
    pool = SamplerPool()
    kept = pool.sampler_for(SamplingParameters(top_k=1))
    for top_k in range(2, 50):
        pool.sampler_for(SamplingParameters(top_k=top_k))
    gc.collect()
    assert list(pool._unseeded.values()) == [kept]
