"""Loading a model's weights, in the type that is fastest where they are used.

On a GPU weights stay as shipped. On a CPU 16-bit arithmetic is emulated: quantised matrices with float16
scales are tens of times slower than with float32 ones, and with OpenBLAS dense float32 is the fastest
form of all, so quantised models are expanded when memory allows. Without OpenBLAS dense bfloat16 reads a
prompt twice as fast as anything else. With matrices stored column by column OpenBLAS's kernels for AVX2 take
10 to 20 % less time for a decode step, and 3 to 11 % less for prompts; those for AVX-512 take more for most.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import dequantize_model, get_total_parameters, load_config, load_model

from mlxcel_trio.engine.mlx_runtime import on_cpu
from mlxcel_trio.errors import CorruptModelError, MlxcelError, ModelError, UnsupportedModelError, one_line

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
FloatType = Literal["float32", "bfloat16", "float16"]

_TYPES: dict[FloatType, mx.Dtype] = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_WINDOW_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_WINDOW_WHEN_UNKNOWN = 4096


class LoadedWeights(NamedTuple):
    """A model in memory. ``dtype`` describes its weights for people."""

    model: Module
    config: dict[str, Any]
    dtype: str


class WeightPlan(NamedTuple):
    """What to do with shipped weights. ``dtype`` ``None`` leaves floating-point weights as they are."""

    dtype: FloatType | None
    dequantise: bool = False


def load_weights(
    directory: Path, dtype: Dtype, *, fast_blas: bool, column_major: bool = False
) -> LoadedWeights:
    """Load the model in ``directory`` and bring it into the planned type. Takes seconds to minutes.

    ``fast_blas`` says whether float32 products are fast on the CPU, and ``column_major`` whether they are
    faster with matrices stored column by column; both play no part on a GPU. The arrays belong to the calling
    thread.

    :raises UnsupportedModelError: mlx-lm does not know the architecture, or it brings code of its own.
    :raises CorruptModelError: weights and config do not belong together.
    :raises ModelError: it cannot be loaded for another reason, memory among them.
    """
    try:
        model, config = _load_lazily(directory)
        plan = plan_weights(
            dtype,
            shipped=_shipped_type(model),
            quantised="quantization" in config,
            parameters=get_total_parameters(model),
            on_cpu=on_cpu(),
            fast_blas=fast_blas,
            available_bytes=available_memory(),
        )
        model = _apply(plan, model)
        if column_major and on_cpu():
            _store_by_columns(model)
        mx.eval(model.parameters())
    except MlxcelError:
        raise
    except Exception as error:  # mlx-lm lets everything through, from KeyError to a failed allocation
        raise ModelError(
            f"{directory} cannot be loaded: {type(error).__name__}: {one_line(error)}"
        ) from error
    return LoadedWeights(model, config, _describe(config, plan, _shipped_type(model)))


def plan_weights(
    dtype: Dtype,
    *,
    shipped: FloatType,
    quantised: bool,
    parameters: int,
    on_cpu: bool,
    fast_blas: bool,
    available_bytes: int,
) -> WeightPlan:
    """Decide on the form of the weights; see the module's text for the reasons.

    ``shipped`` is the type of the floating-point weights, scales included. On a CPU the dense model may
    take half of ``available_bytes``; the rest is for KV caches and everybody else. An explicit ``dtype``
    is obeyed as it is.
    """
    if not on_cpu:
        return WeightPlan(None if dtype == "auto" else dtype)
    target = _fastest_dense(shipped, quantised=quantised, fast_blas=fast_blas) if dtype == "auto" else dtype
    fits = parameters * _TYPES[target].size <= available_bytes // 2
    if quantised and not fits:
        return WeightPlan("float32" if dtype == "auto" else dtype)
    if dtype == "auto" and not fits and _TYPES[target].size > _TYPES[shipped].size:
        return WeightPlan("bfloat16")
    return WeightPlan(target, dequantise=quantised)


def _fastest_dense(shipped: FloatType, *, quantised: bool, fast_blas: bool) -> FloatType:
    # What was shipped in full precision is not rounded behind the user's back.
    return "float32" if fast_blas or (shipped == "float32" and not quantised) else "bfloat16"


def context_window(config: dict[str, Any], limit: int | None) -> int:
    """The context window in tokens: ``limit``, but never more than the model was made for.

    A larger ``limit`` is capped without an error. A model that names no window of its own, as recurrent
    ones may, has ``limit``, or 4096.
    """
    text_config = config.get("text_config")
    sources = [config, text_config] if isinstance(text_config, dict) else [config]
    for value in (source.get(key) for source in sources for key in _WINDOW_KEYS):
        if isinstance(value, int) and value > 0:
            return value if limit is None else min(value, limit)
    return _WINDOW_WHEN_UNKNOWN if limit is None else limit


def available_memory() -> int:
    """Bytes that this process may still use: of the machine and, on Linux, of its control group."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    group = Path("/sys/fs/cgroup")
    try:
        left = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no control group, or one without a limit ("max")
        return available
    return max(0, min(available, left))


def _load_lazily(directory: Path) -> tuple[Module, dict[str, Any]]:
    config = load_config(directory)
    if "model_file" in config:
        raise UnsupportedModelError(f"{directory} brings its own program code, which is never run")
    try:
        loaded: tuple[Module, dict[str, Any]] = load_model(directory, lazy=True)
    except ValueError as error:
        if isinstance(error.__cause__, ImportError):
            raise UnsupportedModelError(
                f"mlx-lm {metadata.version('mlx-lm')} does not run models of type {config['model_type']!r}"
            ) from error
        raise CorruptModelError(f"{directory}: weights do not fit config.json: {one_line(error)}") from error
    return loaded


def _apply(plan: WeightPlan, model: Module) -> Module:
    if plan.dtype is None:
        return model
    target = _TYPES[plan.dtype]
    if plan.dequantise:
        # Scales first: matrices expand into the type of their scales.
        _cast(model, mx.float32)
        model = dequantize_model(model)
    _cast(model, target)
    return model


def _cast(model: Module, target: mx.Dtype) -> None:
    # Some architectures name weights that do not survive 16 bits.
    may_cast = getattr(model, "cast_predicate", None)

    def cast(path: str, weight: mx.array) -> mx.array:
        floating = mx.issubdtype(weight.dtype, mx.floating)
        return weight.astype(target) if floating and (may_cast is None or may_cast(path)) else weight

    model.update(tree_map_with_path(cast, model.parameters()))


def _store_by_columns(model: Module) -> None:
    """Change how float32 matrices ``[out, in]`` lie in memory; their shapes and values stay."""
    for layer in model.modules():
        if type(layer) in (Linear, Embedding) and layer.weight.dtype == mx.float32:
            layer.weight = mx.contiguous(layer.weight.T).T
            mx.eval(layer.weight)  # one by one, so that no more than one is in memory twice


def _shipped_type(model: Module) -> FloatType:
    weights = cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))
    names = {kind: name for name, kind in _TYPES.items()}
    floating = [weight for _, weight in weights if weight.dtype in names]
    return names[max(floating, key=lambda weight: weight.size).dtype] if floating else "float32"


def _describe(config: dict[str, Any], plan: WeightPlan, dtype: FloatType) -> str:
    bits = config.get("quantization", {}).get("bits")
    if bits is None:
        return dtype
    return f"{dtype} (from {bits}-bit)" if plan.dequantise else f"{bits}-bit, {dtype} scales"
