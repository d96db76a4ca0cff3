"""Shared rotary embeddings against MLX's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.nn.layers.base import Module
from mlx.nn.layers.positional_encoding import RoPE
from mlx_lm.models.rope_utils import Llama3RoPE, YarnRoPE

from mlxcel_trio.engine.rotary import SharedRoPE, share_rotary

if TYPE_CHECKING:
    from collections.abc import Callable

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MADE: dict[str, Callable[[], Any]] = {
    "usual": lambda: RoPE(64, base=100_000),
    "odd size, stretched": lambda: RoPE(20, base=12_345.6, scale=0.25),
    "Llama 3": lambda: Llama3RoPE(64, base=500_000.0, scaling_config=LLAMA3),
}


def numbers(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(1)).astype(dtype)


def assert_equal(one: mx.array, other: mx.array) -> None:
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(np.array(one.astype(mx.float32)), np.array(other.astype(mx.float32)))


class Layer(Module):
    def __init__(self, rope: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rope = rope


class Model(Module):
    def __init__(self, *ropes: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers = [Layer(rope) for rope in ropes]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int | mx.array]:
    """The offsets whose sines and cosines were asked for."""
    offsets: list[int | mx.array] = []
    rotation = SharedRoPE._rotation

    def counted(rope: SharedRoPE, x: mx.array, offset: int | mx.array) -> object:
        offsets.append(offset)
        return rotation(rope, x, offset)

    monkeypatch.setattr(SharedRoPE, "_rotation", counted)
    return offsets


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("kind", MADE)
@given(tokens=st.integers(1, 5), first=st.integers(0, 100_000))
def test_a_number_turns_to_the_last_bit_as_mlx_does(
    kind: str, dtype: mx.Dtype, tokens: int, first: int
) -> None:
    rope = MADE[kind]()
    x = numbers(2, 3, tokens, rope.dims, dtype=dtype)
    assert_equal(SharedRoPE(rope)(x, offset=first), rope(x, offset=first))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("kind", MADE)
@given(positions=st.lists(st.integers(0, 100_000), min_size=1, max_size=4))
def test_announced_offsets_turn_to_the_last_bit_as_mlx_does(
    kind: str, dtype: mx.Dtype, positions: list[int]
) -> None:
    rope = MADE[kind]()
    offsets = mx.array(positions)
    shared = SharedRoPE(rope)
    shared.expect(offsets)
    for heads in (4, 2):
        x = numbers(len(positions), heads, 1, rope.dims, dtype=dtype)
        assert_equal(shared(x, offset=offsets), rope(x, offset=offsets))


def test_queries_as_models_make_them() -> None:
    rope: Any = RoPE(8)
    x = numbers(1, 6, 3, 8).transpose(0, 2, 1, 3)
    assert_equal(SharedRoPE(rope)(x, offset=5), rope(x, offset=5))


def test_layers_share_what_is_computed(made: list[int | mx.array]) -> None:
    model = Model(*(RoPE(8) for _ in range(5)))
    (shared,) = share_rotary(model)
    offsets = mx.array([3, 9])
    shared.expect(offsets)
    for layer in model.layers:
        assert layer.rope is shared
        for heads in (4, 2):
            shared(numbers(2, heads, 1, 8), offset=offsets)
    assert made == [offsets]


def test_nothing_old_is_used_for_something_new(made: list[int | mx.array]) -> None:
    rope: Any = RoPE(8)
    shared = SharedRoPE(rope)
    one, other = mx.array([7]), mx.array([8])
    calls: list[tuple[mx.array, int | mx.array]] = [
        (numbers(1, 2, 1, 8), 7),
        (numbers(1, 2, 1, 8), 8),
        (numbers(1, 2, 2, 8), 8),
        (numbers(1, 2, 2, 8, dtype=mx.bfloat16), 8),
        (numbers(1, 2, 1, 8), one),
        (numbers(1, 2, 1, 8), other),
        (numbers(1, 2, 1, 8), 8),
    ]
    for x, offset in calls:
        shared.expect(offset if isinstance(offset, mx.array) else None)
        assert_equal(shared(x, offset=offset), rope(x, offset=offset))
    assert len(made) == len(calls)


def test_an_array_that_was_not_announced_may_change_in_place(made: list[int | mx.array]) -> None:
    rope: Any = RoPE(8)
    shared = SharedRoPE(rope)
    x, offsets = numbers(2, 2, 1, 8), mx.array([3, 9])
    for _ in range(3):
        assert_equal(shared(x, offset=offsets), rope(x, offset=offsets))
        offsets += 1
    assert made == []


def test_what_is_announced_counts_for_one_step(made: list[int | mx.array]) -> None:
    shared = SharedRoPE(RoPE(8))
    before, now = mx.array([3]), mx.array([4])
    shared.expect(before)
    shared.expect(now)
    shared(numbers(1, 2, 1, 8), offset=before)
    assert made == []


@pytest.mark.parametrize("shape", [(2, 3, 1, 12), (3, 1, 8)])
def test_other_shapes_are_left_to_mlx(shape: tuple[int, ...], made: list[int | mx.array]) -> None:
    rope: Any = RoPE(8)
    x = numbers(*shape)
    assert_equal(SharedRoPE(rope)(x, offset=4), rope(x, offset=4))
    assert made == []


def test_different_ways_of_turning_are_kept_apart() -> None:
    stretched = Llama3RoPE(8, scaling_config=LLAMA3)
    model = Model(RoPE(8), RoPE(8, base=1000), RoPE(8, scale=0.5), RoPE(8), stretched, RoPE(4))
    originals = [layer.rope for layer in model.layers]
    assert len(share_rotary(model)) == 5
    assert model.layers[0].rope is model.layers[3].rope
    for layer, original in zip(model.layers, originals, strict=True):
        x = numbers(1, 2, 3, original.dims)
        assert isinstance(layer.rope, SharedRoPE)
        assert_equal(layer.rope(x, offset=6), original(x, offset=6))


@pytest.mark.parametrize("rope", [RoPE(8, traditional=True), YarnRoPE(8)])
def test_other_embeddings_stay(rope: Module) -> None:
    model = Model(rope)
    assert share_rotary(model) == []
    assert model.layers[0].rope is rope


def test_there_is_nothing_more_to_load_or_save() -> None:
    model: Any = Model(RoPE(8))
    before = model.parameters()
    share_rotary(model)
    assert model.parameters() == before
