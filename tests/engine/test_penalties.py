"""Penalties and biases against their formulas, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel_trio.core.sampling import LogitAdjustments
from mlxcel_trio.engine.mlx_runtime import import_mlx

import_mlx()

import mlx.core as mx  # noqa: E402 - after OpenBLAS

from mlxcel_trio.engine.penalties import Adjuster  # noqa: E402

LOGITS = [2.0, -2.0, 1.0, 0.0, -1.0]
PROMPT, ANSWER = [0, 1], [2, 2, 4]


def adjusted(adjustments: LogitAdjustments, answer: list[int]) -> list[float]:
    adjuster = Adjuster(adjustments, prompt_length=len(PROMPT), vocabulary_size=len(LOGITS))
    rows: Any = adjuster(mx.array(PROMPT + answer), mx.array([LOGITS])).tolist()
    return list(rows[0])


@pytest.mark.parametrize(
    ("adjustments", "expected"),
    [
        (LogitAdjustments(repetition_penalty=2.0), [1.0, -4.0, 0.5, 0.0, -2.0]),
        (LogitAdjustments(repetition_penalty=0.5), [4.0, -1.0, 2.0, 0.0, -0.5]),
        (LogitAdjustments(presence_penalty=0.5), [2.0, -2.0, 0.5, 0.0, -1.5]),
        (LogitAdjustments(frequency_penalty=0.5), [2.0, -2.0, 0.0, 0.0, -1.5]),
        (LogitAdjustments(frequency_penalty=-0.5), [2.0, -2.0, 2.0, 0.0, -0.5]),
        (LogitAdjustments(logit_bias=((0, -100.0), (3, 1.5))), [-98.0, -2.0, 1.0, 1.5, -1.0]),
        (LogitAdjustments(2.0, 0.25, 0.5, ((3, 1.0),)), [1.0, -4.0, -0.75, 1.0, -2.75]),
    ],
)
def test_formulas(adjustments: LogitAdjustments, expected: list[float]) -> None:
    assert adjusted(adjustments, ANSWER) == pytest.approx(expected)


def test_before_the_first_token_only_the_prompt_counts() -> None:
    assert adjusted(LogitAdjustments(2.0, 1.0, 1.0), []) == pytest.approx([1.0, -4.0, 1.0, 0.0, -1.0])
