"""Sampling parameters of one sequence, resolved: no field is left to a default further down."""

from __future__ import annotations

from msgspec import Struct


class SamplingDefaults(Struct, frozen=True):
    """What applies when a request is silent: flag, else the model's own file, else these values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


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


class LogitAdjustments(Struct, frozen=True):
    """What is added to a sequence's logits before a token is drawn.

    ``repetition_penalty`` above 0 divides positive and multiplies negative logits of every token that stands
    in the prompt or the answer (Keskar et al. 2019, CTRL). ``presence_penalty`` is subtracted once,
    ``frequency_penalty`` once per occurrence, for tokens of the answer, as in OpenAI's API. ``logit_bias``
    has (token id, bias) pairs that are added.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


NO_ADJUSTMENTS = LogitAdjustments()
