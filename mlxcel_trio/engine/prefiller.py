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

_SHORTEST = 1e-9
"""Seconds; no layer takes less."""


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
    So asking for the caches of some layers after those of others does the work in pieces, at no extra cost.
    """

    def __init__(self, model: Module, prompts: list[list[int]], caches: list[Cache]) -> None:
        lengths = [len(tokens) for tokens in prompts]
        widest = max(lengths)
        self._rows = len(prompts)
        self._padded = widest > min(lengths)
        cache = caches[0] if self._rows == 1 else merge(caches)
        if self._padded:
            padding = [widest - length for length in lengths]
            for layer in cache:
                layer.prepare(lengths=lengths, right_padding=padding)
        model(mx.array([tokens + [0] * (widest - len(tokens)) for tokens in prompts]), cache=cache)
        self._to_do = deque(cache)
        self._done: list[list[Any]] = []  # layers of rows
        self._layer_seconds = 0.0

    def advance(self, seconds: float, clock: Callable[[], float]) -> bool:
        """Compute for about ``seconds`` by ``clock``, one layer at least, and say whether that was all.

        Layers are computed together as far as time allows, for a GPU idles whenever it is waited for.
        """
        deadline = clock() + seconds
        if not self._layer_seconds:
            self._compute(1, clock)  # needs little more than the embedding, and says nothing of the others
            self._compute(1, clock)
            self._compute(self._fitting(deadline - clock()), clock)
        else:
            self._compute(max(self._fitting(seconds), 1), clock)
        return not self._to_do

    def caches(self) -> list[Cache]:
        """Once all is computed: the caches that cover the tokens too, one per prompt."""
        mx.clear_cache()
        return [list(layers) for layers in zip(*self._done, strict=True)]

    def _fitting(self, seconds: float) -> int:
        """How many layers can be computed in this time."""
        return int(max(min(seconds / self._layer_seconds, len(self._to_do)), 0))

    def _compute(self, count: int, clock: Callable[[], float]) -> None:
        """The next layers, as many as there are."""
        count = min(count, len(self._to_do))
        if not count:
            return
        began = clock()
        self._evaluate(count)
        self._layer_seconds = max((clock() - began) / count, _SHORTEST)

    def _evaluate(self, count: int) -> None:
        if self._rows == 1:
            layers = [self._to_do.popleft() for _ in range(count)]
            mx.eval([layer.state for layer in layers])
            self._done += [[layer] for layer in layers]
        else:
            # One by one, so that each takes the memory that the one before it has given back.
            self._done += [self._split(self._to_do.popleft()) for _ in range(count)]

    def _split(self, layer: Any) -> list[Any]:
        """The prompts' own caches of a layer."""
        mx.eval(layer.state)
        if self._padded:
            layer.finalize()
        parts = [layer.extract(row) for row in range(self._rows)]
        mx.eval([part.state for part in parts])
        return parts
