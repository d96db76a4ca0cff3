"""Penalties and biases on logits, as a logits processor of one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from mlxcel_trio.core.sampling import LogitAdjustments


class Adjuster:
    """Applies :class:`LogitAdjustments`; formulas there. Keeps no state between tokens.

    ``prompt_length``: how many of the tokens that the processor is shown belong to the prompt.
    """

    def __init__(self, adjustments: LogitAdjustments, *, prompt_length: int, vocabulary_size: int) -> None:
        self._adjustments = adjustments
        self._prompt_length = prompt_length
        self._vocabulary_size = vocabulary_size
        self._bias = self._dense_bias()

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """``tokens [n]`` of prompt and answer so far, ``logits [1, vocabulary]`` of the next."""
        adjustments = self._adjustments
        if adjustments.repetition_penalty != 1:
            penalty = adjustments.repetition_penalty
            penalised = mx.where(logits > 0, logits / penalty, logits * penalty)
            logits = mx.where(self._counts(tokens) > 0, penalised, logits)
        if adjustments.presence_penalty or adjustments.frequency_penalty:
            counts = self._counts(tokens[self._prompt_length :])
            logits = logits - adjustments.frequency_penalty * counts
            logits = logits - adjustments.presence_penalty * (counts > 0)
        return logits if self._bias is None else logits + self._bias

    def _counts(self, tokens: mx.array) -> mx.array:
        return mx.zeros(self._vocabulary_size).at[tokens].add(1)

    def _dense_bias(self) -> mx.array | None:
        if not self._adjustments.logit_bias:
            return None
        tokens, biases = zip(*self._adjustments.logit_bias, strict=True)
        return mx.zeros(self._vocabulary_size).at[mx.array(tokens)].add(mx.array(biases))
