# ruff: noqa: E402
"""Model directories with random weights, small enough to make and load in milliseconds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from mlxcel_trio.engine.mlx_runtime import import_mlx

import_mlx()  # before anything else imports MLX

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY_SIZE = 64
WINDOW = 512

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY_SIZE,
    "max_position_embeddings": WINDOW,
}
LLAMA = {**_COMMON, "model_type": "llama", "tie_word_embeddings": False}
QWEN3 = {**_COMMON, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}

QWEN3_MOE = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
# Sliding windows, whose caches forget.
GEMMA3 = {
    **_COMMON,
    "model_type": "gemma3_text",
    "head_dim": 16,
    "sliding_window": 24,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 16,
}
# Linear attention, whose caches are not made of tokens.
QWEN3_5 = {
    "model_type": "qwen3_5",
    "text_config": {
        **_COMMON,
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "tie_word_embeddings": True,
    },
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "gemma3": GEMMA3,
    "qwen3_5": QWEN3_5,
}


def write_model(directory: Path, config: dict[str, Any], *, dtype: str = "float32", bits: int = 0) -> Path:
    """Make ``directory`` a model of ``config``, always with the same weights."""
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    shapes = cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))
    keys = mx.random.split(mx.random.key(7), len(shapes))
    model.load_weights(
        [(name, _random_weight(like.shape, key)) for (name, like), key in zip(shapes, keys, strict=True)]
    )
    model.set_dtype(getattr(mx, dtype))
    written = dict(config)
    if bits:
        quantize(model, group_size=32, bits=bits)
        written["quantization"] = {"group_size": 32, "bits": bits}
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(written))
    mx.save_safetensors(str(directory / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return directory


def _random_weight(shape: tuple[int, ...], key: mx.array) -> mx.array:
    """Large enough that some tokens are much likelier than others; norms near one."""
    normal = mx.random.normal(shape, key=key)
    return normal * 0.3 if len(shape) > 1 else 1 + normal * 0.1
