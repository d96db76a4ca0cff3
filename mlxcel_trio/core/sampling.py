"""Sampling parameters of one sequence, resolved: no field is left to a default further down."""

from __future__ import annotations

from msgspec import Struct


class SamplingDefaults(Struct, frozen=True):
    """What applies when a request is silent: flag, else the model's own file, else these values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


class SamplingParameters(Struct, frozen=True):
    """How tokens of a sequence are drawn.

    ``temperature`` 0 is greedy and ignores the rest. ``top_p`` in (0, 1] keeps the smallest set with that
    probability mass, ``top_k`` 0 keeps all, ``min_p`` in [0, 1] is relative to the likeliest token. Equal
    ``seed`` and prompt give equal tokens, whatever else runs in the batch; ``None`` draws freely.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
