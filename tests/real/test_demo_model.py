"""The server on the demo model, which is fetched first: long lane."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from real.determinism import at_once, check_seed_reproduces, check_streamed_is_not_streamed, one_by_one
from support.served import text_of
from support.served_model import serving_model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

PATIENCE_SECONDS = 1200
QUESTIONS = [
    f"In {['one', 'two', 'three'][i % 3]} sentences: what is the number {i} good for?" for i in range(8)
]
BODIES = [{"input": question, "temperature": 0, "max_output_tokens": 24} for question in QUESTIONS]

serving_demo = partial(serving_model, limit_seconds=PATIENCE_SECONDS)


async def test_it_knows_the_capital_of_france(demo: Path) -> None:
    async with serving_demo(demo) as served:
        response = await served.create(input="What is the capital of France?", temperature=0)
    assert text_of(response) == "The capital of France is Paris."


async def test_streamed_is_not_streamed(demo: Path) -> None:
    async with serving_demo(demo) as served:
        for body in BODIES[:3]:
            await check_streamed_is_not_streamed(served, body)


async def test_eight_at_once_is_one_by_one(demo: Path) -> None:
    async with serving_demo(demo) as served:
        assert await at_once(served, BODIES) == await one_by_one(served, BODIES)


async def test_a_seed_reproduces_at_temperature_1(demo: Path) -> None:
    async with serving_demo(demo) as served:
        await check_seed_reproduces(served, BODIES[:4])
