"""Drawing the next token from log-probabilities.

top_p, top_k and min_p each look at the whole distribution as the model gives it, and a token must pass
all of them; temperature then reshapes what is left. All arrays here are ``[rows, vocabulary]``.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import mlx.core as mx

from mlxcel_trio.engine.mlx_runtime import on_cpu

if TYPE_CHECKING:
    from mlxcel_trio.core.sampling import SamplingParameters

Sampler = Callable[[mx.array], mx.array]
"""``log-probabilities [rows, vocabulary] -> token ids [rows]``."""

# A log-probability divided by less than this would leave the range of float32.
_MIN_TEMPERATURE = 1e-30
# Nuclei are nearly always smaller, and sorting a whole vocabulary on a CPU costs as much as a decode step.
_USUAL_NUCLEUS = 1024


def greedy(logprobs: mx.array) -> mx.array:
    """The likeliest token; of equals the one with the lowest id."""
    return mx.argmax(logprobs, axis=-1)


class RandomSampler:
    """Draws with a key sequence of its own, one key a call.

    Equal ``parameters.seed`` gives equal draws from equal distributions, whoever else draws. Without a
    seed the sequence begins at random. Used by the thread that made it.
    """

    def __init__(self, parameters: SamplingParameters) -> None:
        self._parameters = parameters
        seed = secrets.randbits(64) if parameters.seed is None else parameters.seed
        self._key = mx.random.key(seed % 2**64)

    def __call__(self, logprobs: mx.array) -> mx.array:
        self._key, key = mx.random.split(self._key)
        kept = keep_likely(logprobs.astype(mx.float32), self._parameters)
        return mx.random.categorical(kept / max(self._parameters.temperature, _MIN_TEMPERATURE), key=key)


class SamplerPool:
    """Gives rows their samplers; rows that may share one do.

    Rows that have the same sampler object are sampled in one call.
    """

    def __init__(self) -> None:
        self._unseeded: WeakValueDictionary[SamplingParameters, RandomSampler] = WeakValueDictionary()

    def sampler_for(self, parameters: SamplingParameters) -> Sampler:
        """The sampler of a row; the row must keep it for as long as it runs."""
        if parameters.temperature <= 0:
            return greedy
        if parameters.seed is not None:
            return RandomSampler(parameters)
        sampler = self._unseeded.get(parameters)
        if sampler is None:
            sampler = self._unseeded[parameters] = RandomSampler(parameters)
        return sampler


def keep_likely(logprobs: mx.array, parameters: SamplingParameters) -> mx.array:
    """Log-probabilities with -inf for the tokens that top_p, top_k or min_p exclude; one at least is kept."""
    kept = logprobs
    vocabulary_size = logprobs.shape[-1]
    by_rank = 0 < parameters.top_k < vocabulary_size
    if by_rank or parameters.top_p < 1:
        kept = _keep_best(logprobs, parameters.top_k if by_rank else vocabulary_size, parameters.top_p)
    if parameters.min_p > 0:
        likeliest = mx.max(logprobs, axis=-1, keepdims=True)
        kept = mx.where(logprobs < likeliest + math.log(parameters.min_p), -mx.inf, kept)
    return kept


def _keep_best(logprobs: mx.array, count: int, top_p: float) -> mx.array:
    """Keep the ``count`` likeliest tokens, and of these the smallest set with mass ``top_p``."""
    usual = min(count, _USUAL_NUCLEUS) if top_p < 1 else count
    ids, ranked = rank(logprobs, usual)
    if usual < count and not _holds_nucleus(ranked, top_p):
        ids, ranked = rank(logprobs, count)
    if top_p < 1:
        # A token is in the smallest set while the mass of those above it is too small; the first always is.
        mass_above = mx.cumsum(mx.exp(ranked), axis=-1, inclusive=False)
        in_nucleus = mx.logical_or(mass_above < top_p, mx.arange(ranked.shape[-1]) == 0)
        ranked = mx.where(in_nucleus, ranked, -mx.inf)
    nothing = mx.full(logprobs.shape, -mx.inf, dtype=logprobs.dtype)
    return mx.put_along_axis(nothing, ids, ranked, axis=-1)


def rank(logprobs: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and log-probabilities ``[rows, count]`` of the likeliest tokens, best first."""
    if count < logprobs.shape[-1]:
        ids = mx.argpartition(-logprobs, kth=count - 1, axis=-1)[..., :count]
        values = mx.take_along_axis(logprobs, ids, axis=-1)
        order = mx.argsort(-values, axis=-1)
        return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(values, order, axis=-1)
    ids = mx.argsort(-logprobs, axis=-1)
    return ids, mx.take_along_axis(logprobs, ids, axis=-1)


def _holds_nucleus(ranked: mx.array, top_p: float) -> bool:
    """Whether these tokens have the mass ``top_p`` in every row. Waits for the model, so for CPUs only.

    A GPU sorts a vocabulary in less time than such a wait costs it.
    """
    if not on_cpu():
        return False
    return bool((mx.min(mx.sum(mx.exp(ranked), axis=-1)) >= top_p).item())
