"""Rotary position embeddings whose sines and cosines are computed once in a step, for all layers.

MLX has a kernel for these embeddings on a GPU only. On a CPU each layer turns its queries and its keys by
some fifty small operations, half of which compute the sines and cosines that all other layers compute too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.positional_encoding import RoPE
from mlx_lm.models.rope_utils import Llama3RoPE

if TYPE_CHECKING:
    from collections.abc import Sequence

Offset = int | mx.array
"""The position of the first token: of every row, or ``[rows]`` of each."""


class SharedRoPE(Module):
    """Does what ``rope`` does, and remembers its last sines and cosines.

    They are used again for the same number and, of arrays, for the one that was announced by
    :meth:`expect`. For other arrays ``rope`` itself is called, since mlx-lm's caches change theirs in place.
    """

    def __init__(self, rope: RoPE | Llama3RoPE) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rope: Any = rope
        self._frequencies = _frequencies(rope)
        self._expected: mx.array | None = None
        self._last: _Rotation | None = None

    def expect(self, offsets: mx.array | None) -> None:
        """Announce the ``[rows]`` offsets of the next step, which nobody will change in place."""
        self._expected = offsets

    def __call__(self, x: mx.array, offset: Offset = 0) -> mx.array:
        """Turn ``x [rows, heads, tokens, dimension]``."""
        shared = isinstance(offset, int) or offset is self._expected
        if not shared or x.ndim != 4 or x.shape[-1] != self._rope.dims:
            turned: mx.array = self._rope(x, offset=offset)
            return turned
        if self._last is None or not self._last.suits(x, offset):
            self._last = self._rotation(x, offset)
        return self._last.turn(x)

    def _rotation(self, x: mx.array, offset: Offset) -> _Rotation:
        tokens = x.shape[2]
        first = offset if isinstance(offset, int) else offset[:, None, None]
        positions = (mx.arange(tokens, dtype=mx.float32) + first) * getattr(self._rope, "scale", 1.0)
        angles = positions[..., None] * self._frequencies
        cosines, sines = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
        return _Rotation(
            offset,
            tokens,
            cosines=mx.stack([cosines, cosines], axis=-2),
            sines=mx.stack([-sines, sines], axis=-2),
        )


class _Rotation(NamedTuple):
    """``cosines`` and ``sines`` are ``[tokens, 2, dimension / 2]``, with ``[rows, 1]`` ahead for an array."""

    offset: Offset
    tokens: int
    cosines: mx.array
    sines: mx.array

    def suits(self, x: mx.array, offset: Offset) -> bool:
        numbers = isinstance(offset, int) and isinstance(self.offset, int)
        same = offset == self.offset if numbers else offset is self.offset
        return bool(same) and x.shape[2] == self.tokens and x.dtype == self.cosines.dtype

    def turn(self, x: mx.array) -> mx.array:
        """Turn each pair of an element of the first half and the one in its place of the second."""
        halves = mx.unflatten(x, -1, (2, -1))
        return mx.flatten(halves * self.cosines + halves[..., ::-1, :] * self.sines, -2, -1)


def share_rotary(model: Module) -> Sequence[SharedRoPE]:
    """Have the layers of ``model`` share; returns what they use now, one for each way of turning.

    Embeddings that pair neighbours, or stretch positions by other schemes than Llama's, stay as they are.
    """
    shared: dict[tuple[Any, ...], SharedRoPE] = {}
    for module in model.modules():
        for name, child in module.children().items():
            if type(child) in (RoPE, Llama3RoPE) and not child.traditional:
                module[name] = shared.setdefault(_kind(child), SharedRoPE(child))
    return list(shared.values())


def _kind(rope: RoPE | Llama3RoPE) -> tuple[Any, ...]:
    if isinstance(rope, RoPE):
        return (rope.dims, rope.base, rope.scale)
    wavelengths: Any = rope._freqs.tolist()  # noqa: SLF001 - mlx-lm's name; it has no other
    return (rope.dims, *wavelengths)


def _frequencies(rope: RoPE | Llama3RoPE) -> mx.array:
    """Radians for each position, of every pair, by the formulas of MLX: to the last bit the same."""
    if isinstance(rope, Llama3RoPE):
        return mx.reciprocal(rope._freqs)  # noqa: SLF001
    half = rope.dims // 2
    step = mx.array(math.log(rope.base), dtype=mx.float32) / half
    return mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * step)
