"""Prompt tokens through the model and into caches. Belongs to the thread that loaded the model."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcel_trio.engine.caches import Cache, is_batchable, merge, new_cache
from mlxcel_trio.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def feed(self, prompts: list[list[int]], caches: list[Cache]) -> Feeding:
        """Begin to run prompt tokens through the model, behind what ``caches`` cover.

        A single cache is changed in place. Several prompts are padded to the longest of them, and their
        caches are left as they were.
        """
        return Feeding(self._model, prompts, caches)


class Feeding:
    """Prompt tokens on their way through the model's layers.

    MLX computes only what it is asked for, and a layer's cache needs the layers before it and nothing else.
    So asking for one cache after the other does the work in pieces, at no extra cost.
    """

    def __init__(self, model: Module, prompts: list[list[int]], caches: list[Cache]) -> None:
        lengths = [len(tokens) for tokens in prompts]
        widest = max(lengths)
        self._rows = len(prompts)
        self._padded = widest > min(lengths)
        self._cache = caches[0] if self._rows == 1 else merge(caches)
        if self._padded:
            padding = [widest - length for length in lengths]
            for layer in self._cache:
                layer.prepare(lengths=lengths, right_padding=padding)
        model(mx.array([tokens + [0] * (widest - len(tokens)) for tokens in prompts]), cache=self._cache)
        self._to_do = deque(self._cache)
        self._done: list[list[Any]] = []  # layers of rows

    def advance(self, seconds: float, clock: Callable[[], float]) -> bool:
        """Compute for ``seconds`` by ``clock``, one layer at least, and say whether that was all.

        Time counts from the end of the first layer, which waits for whatever MLX was given before. No layer
        is begun that would end too late, if it took as long as the one before it.
        """
        self._compute_layer()
        began = ended = clock()
        deadline = ended + seconds
        while self._to_do and ended + (ended - began) <= deadline:
            self._compute_layer()
            began, ended = ended, clock()
        return not self._to_do

    def caches(self) -> list[Cache]:
        """Once all is computed: the caches that cover the tokens too, one per prompt."""
        mx.clear_cache()
        return [list(layers) for layers in zip(*self._done, strict=True)]

    def _compute_layer(self) -> None:
        layer = self._to_do.popleft()
        mx.eval(layer.state)
        if self._rows == 1:
            self._done.append([layer])
            return
        if self._padded:
            layer.finalize()
        self._done.append([layer.extract(row) for row in range(self._rows)])
        mx.eval([row.state for row in self._done[-1]])
