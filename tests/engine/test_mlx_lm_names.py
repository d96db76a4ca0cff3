"""The names of mlx-lm that the engine uses, so that a release that changes them fails here and clearly."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from mlxcel_trio.engine.mlx_runtime import import_mlx

if TYPE_CHECKING:
    from collections.abc import Callable


def takes(function: Callable[..., object], *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


def test_mlx_lm_still_has_what_the_engine_calls() -> None:
    import_mlx()
    from mlx_lm.models.cache import BatchKVCache, KVCache, TokenBuffer, make_prompt_cache
    from mlx_lm.utils import dequantize_model, get_total_parameters, load_config, load_model

    assert takes(KVCache.merge, "caches")
    assert takes(BatchKVCache.make_mask, "N", "return_array")
    assert takes(BatchKVCache.prepare, "lengths", "right_padding")
    assert takes(BatchKVCache.finalize, "self")
    assert takes(BatchKVCache.extract, "idx")
    assert takes(BatchKVCache.extend, "other")
    assert takes(BatchKVCache.filter, "batch_indices")
    assert takes(TokenBuffer.__init__, "tokens")
    assert takes(TokenBuffer.update_and_fetch, "tokens")
    assert takes(make_prompt_cache, "model")
    assert takes(load_model, "model_path", "lazy")
    assert takes(load_config, "model_path")
    assert takes(dequantize_model, "model")
    assert takes(get_total_parameters, "model")


def test_rotary_embeddings_still_have_what_the_engine_reads() -> None:
    import_mlx()
    from mlx.nn.layers.positional_encoding import RoPE
    from mlx_lm.models.rope_utils import initialize_rope

    usual = initialize_rope(8, 10_000.0, traditional=False)
    assert type(usual) is RoPE
    assert (usual.dims, usual.base, usual.scale, usual.traditional) == (8, 10_000.0, 1.0, False)
    llama3 = initialize_rope(
        8, 10_000.0, traditional=False, scaling_config={"rope_type": "llama3", "factor": 8}
    )
    assert (llama3.dims, llama3.traditional, llama3._freqs.shape) == (8, False, (4,))
