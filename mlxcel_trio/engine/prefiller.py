"""Prompt tokens through the model and into caches. Belongs to the thread that loaded the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
from mlx_lm.generate import PromptProcessingBatch

from mlxcel_trio.engine.caches import Cache, is_batchable, new_cache
from mlxcel_trio.errors import UnsupportedModelError

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module


class Prefiller:
    """Feeds prompts to a model.

    :raises UnsupportedModelError: the model's caches cannot be batched.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        if not is_batchable(self.new_cache()):
            raise UnsupportedModelError("this kind of model cannot generate several sequences at once")

    def vocabulary_size(self) -> int:
        """The number of logits, which may differ from the tokenizer's vocabulary."""
        logits: mx.array = self._model(mx.array([[0]]), cache=self.new_cache())
        return logits.shape[-1]  # known without being computed

    def new_cache(self) -> Cache:
        """An empty cache for one sequence."""
        return new_cache(self._model)

    def check_fits(self, cache: Cache) -> None:
        """Return if the cache looks like one of this model's.

        :raises ValueError: it belongs to another model or cannot be batched.
        """
        if not (is_batchable(cache) and len(cache) == len(self.new_cache())):
            raise ValueError("the prompt cache does not fit the model")

    def feed(self, prompts: list[list[int]], caches: list[Cache]) -> list[Cache]:
        """Run prompt tokens through the model, and return the caches that cover them too.

        A single cache is changed in place. Several prompts are padded to the longest of them, and their
        caches are left as they were.
        """
        if len(prompts) == 1:
            self._model(mx.array(prompts), cache=caches[0])
        else:
            batch = PromptProcessingBatch(
                self._model, list(range(len(prompts))), caches, prefill_step_size=max(map(len, prompts))
            )
            batch.prompt(prompts)
            caches = [batch.extract_cache(index) for index in range(len(prompts))]
        mx.eval([layer.state for cache in caches for layer in cache])
        mx.clear_cache()
        return caches
