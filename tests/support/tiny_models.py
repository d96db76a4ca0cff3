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
