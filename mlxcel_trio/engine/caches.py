"""KV caches: what a model has computed for a sequence so far, one of mlx-lm's cache objects per layer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from mlx_lm.models.cache import KVCache, make_prompt_cache

from mlxcel_trio.engine.slot_cache import SlotCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx
    from mlx.nn.layers.base import Module

Cache = list[Any]
"""The layers of one sequence, or of several that were merged."""


def new_cache(model: Module) -> Cache:
    """An empty cache for one sequence."""
    return make_prompt_cache(model)


def copy_cache(cache: Cache) -> Cache:
    """A cache that can be fed without changing ``cache``; the copy is cheap, since buffers are shared."""
    return copy.deepcopy(cache)


def is_batchable(cache: Cache) -> bool:
    """Whether sequences with such caches can be computed together. Not all kinds of models have them."""
    return all(hasattr(layer, "merge") for layer in cache)


def merge(caches: Sequence[Cache]) -> Cache:
    """The caches of several sequences as one, whose rows are in the same order, to feed prompts to."""
    return [layers[0].merge(list(layers)) for layers in zip(*caches, strict=True)]


def join(batch: Cache, caches: Sequence[Cache]) -> Cache:
    """``batch``, empty at first, with the rows of ``caches`` behind its own, for one token each at a time.

    Rows leave by its layers' ``filter``.
    """
    if not batch:
        batch = [_batch_layer(layer, index) for index, layer in enumerate(caches[0])]
    return [_join(layer, joining) for layer, joining in zip(batch, zip(*caches, strict=True), strict=True)]


def share_offsets(batch: Cache) -> mx.array | None:
    """The rows' lengths ``[rows]``, which those layers that can now have in one array that never changes.

    ``None``: no layer can.
    """
    layers = [layer for layer in batch if isinstance(layer, SlotCache)]
    for layer in layers:
        layer.offset = layers[0].offset
    return layers[0].offset if layers else None


def _batch_layer(layer: Any, index: int) -> Any:
    return SlotCache(spare_room=8 * (index % 32)) if type(layer) is KVCache else None


def _join(batch: Any, caches: Sequence[Any]) -> Any:
    if isinstance(batch, SlotCache):
        batch.join(caches)
        return batch
    merged = caches[0].merge(list(caches))
    if batch is None:
        return merged
    batch.extend(merged)
    return batch
