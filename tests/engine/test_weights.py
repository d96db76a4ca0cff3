from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx.nn.layers.quantized import QuantizedLinear
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from support.tiny_models import LLAMA, QWEN3, VOCABULARY_SIZE, write_model

from mlxcel_trio.engine import weights
from mlxcel_trio.engine.weights import (
    Dtype,
    FloatType,
    WeightPlan,
    context_window,
    load_weights,
    plan_weights,
)
from mlxcel_trio.errors import CorruptModelError, ModelError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

PARAMETERS = 1_000_000
ROOMY = 2 * 4 * PARAMETERS
ROOMY_FOR_16_BITS = 2 * 2 * PARAMETERS
TIGHT = ROOMY_FOR_16_BITS - 1


def plan(
    dtype: Dtype = "auto",
    *,
    shipped: FloatType = "float16",
    quantised: bool = False,
    on_cpu: bool = True,
    fast_blas: bool = True,
    available_bytes: int = ROOMY,
) -> WeightPlan:
    return plan_weights(
        dtype,
        shipped=shipped,
        quantised=quantised,
        parameters=PARAMETERS,
        on_cpu=on_cpu,
        fast_blas=fast_blas,
        available_bytes=available_bytes,
    )


@pytest.mark.parametrize("quantised", [True, False])
def test_on_a_gpu_weights_stay_as_shipped_or_as_told(quantised: bool) -> None:
    assert plan(on_cpu=False, quantised=quantised) == WeightPlan(None)
    assert plan("float16", on_cpu=False, quantised=quantised) == WeightPlan("float16")


def test_with_a_fast_blas_everything_becomes_dense_float32() -> None:
    assert plan(quantised=True) == WeightPlan("float32", dequantise=True)
    assert plan(shipped="bfloat16") == WeightPlan("float32")
    assert plan(shipped="float32") == WeightPlan("float32")


def test_without_one_dense_bfloat16_is_faster_but_full_precision_is_not_rounded() -> None:
    assert plan(quantised=True, fast_blas=False) == WeightPlan("bfloat16", dequantise=True)
    assert plan(shipped="float16", fast_blas=False) == WeightPlan("bfloat16")
    assert plan(shipped="float32", fast_blas=False) == WeightPlan("float32")


def test_what_does_not_fit_stays_small() -> None:
    assert plan(quantised=True, available_bytes=ROOMY - 1) == WeightPlan("float32")
    assert plan(quantised=True, fast_blas=False, available_bytes=TIGHT) == WeightPlan("float32")
    assert plan(quantised=True, fast_blas=False, available_bytes=ROOMY_FOR_16_BITS).dequantise
    assert plan(shipped="float16", available_bytes=ROOMY - 1) == WeightPlan("bfloat16")
    assert plan(shipped="float32", available_bytes=TIGHT) == WeightPlan("float32")


def test_an_explicit_type_is_obeyed() -> None:
    assert plan("float16", quantised=True) == WeightPlan("float16", dequantise=True)
    assert plan("float16", quantised=True, available_bytes=TIGHT) == WeightPlan("float16")
    assert plan("bfloat16", shipped="float32") == WeightPlan("bfloat16")
    assert plan("float32", shipped="float16", available_bytes=TIGHT) == WeightPlan("float32")


@pytest.mark.parametrize(
    ("config", "limit", "expected"),
    [
        ({"max_position_embeddings": 8192}, None, 8192),
        ({"max_position_embeddings": 8192}, 1000, 1000),
        ({"max_position_embeddings": 8192}, 100_000, 8192),
        ({"n_positions": 1024}, None, 1024),
        ({"text_config": {"max_position_embeddings": 2048}}, 4000, 2048),
        ({"max_position_embeddings": None, "text_config": {"max_position_embeddings": 64}}, None, 64),
        ({"max_position_embeddings": "many", "text_config": None}, None, 4096),
        ({}, None, 4096),
        ({}, 100_000, 100_000),
    ],
)
def test_the_window_is_the_models_own_or_a_smaller_limit(
    config: dict[str, Any], limit: int | None, expected: int
) -> None:
    assert context_window(config, limit) == expected


def test_available_memory_is_that_of_this_machine() -> None:
    assert 2**20 < weights.available_memory() < 2**50


@pytest.fixture(params=[True, False], ids=["fast BLAS", "slow BLAS"])
def fast_blas(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(weights, "on_cpu", lambda: True)
    fast: bool = request.param
    return fast


def logits(model: Any) -> mx.array:
    result: mx.array = model(mx.array([[1, 2, 3]]))
    return result.astype(mx.float32)


def is_quantised(model: Any) -> bool:
    return any(isinstance(module, QuantizedLinear) for _, module in model.named_modules())


def test_a_quantised_model_is_expanded_without_changing_what_it_says(tmp_path: Path, fast_blas: bool) -> None:
    directory = write_model(tmp_path / "model", LLAMA, dtype="float16", bits=4)
    loaded = load_weights(directory, "auto", fast_blas=fast_blas)
    reference, _ = load_model(directory)
    reference.set_dtype(mx.float32)
    expected_type = "float32" if fast_blas else "bfloat16"
    assert loaded.dtype == f"{expected_type} (from 4-bit)"
    assert not is_quantised(loaded.model)
    error = mx.abs(logits(loaded.model) - logits(reference)).max().item()
    assert float(error) < (1e-3 if fast_blas else 0.3)  # type: ignore[arg-type]


def test_a_quantised_model_that_does_not_fit_gets_float32_scales(
    tmp_path: Path, fast_blas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "available_memory", lambda: 1000)
    directory = write_model(tmp_path / "model", LLAMA, dtype="float16", bits=4)
    loaded = load_weights(directory, "auto", fast_blas=fast_blas)
    assert loaded.dtype == "4-bit, float32 scales"
    assert is_quantised(loaded.model)
    assert logits(loaded.model).shape == (1, 3, VOCABULARY_SIZE)
    assert loaded.model(mx.array([[1]])).dtype == mx.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_explicit_type_is_that_of_every_weight(tmp_path: Path, fast_blas: bool, dtype: Dtype) -> None:
    directory = write_model(tmp_path / "model", LLAMA, dtype="bfloat16")
    loaded = load_weights(directory, dtype, fast_blas=fast_blas)
    assert loaded.dtype == dtype
    assert loaded.model(mx.array([[1]])).dtype == getattr(mx, dtype)


def test_weights_that_an_architecture_keeps_in_full_precision_are_left(
    tmp_path: Path, fast_blas: bool
) -> None:
    directory = write_model(tmp_path / "model", LLAMA)
    model, _ = load_model(directory)
    model.cast_predicate = lambda path: "norm" not in path
    weights._cast(model, mx.float16)
    assert model.model.norm.weight.dtype == mx.float32
    assert model.lm_head.weight.dtype == mx.float16


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["own head", "tied head"])
def test_matrices_stored_by_columns_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    monkeypatch.setattr(weights, "on_cpu", lambda: True)
    directory = write_model(tmp_path / "model", config)
    by_rows = load_weights(directory, "auto", fast_blas=True).model
    by_columns = load_weights(directory, "auto", fast_blas=True, column_major=True).model
    for one, other in zip(matrices(by_rows), matrices(by_columns), strict=True):
        assert mx.array_equal(one, other)
        assert memoryview(one).c_contiguous
        assert memoryview(other).f_contiguous
    error = mx.abs(logits(by_columns) - logits(by_rows)).max().item()
    assert float(error) < 1e-4  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "cpu"), [("bfloat16", True), ("float32", False)])
def test_other_matrices_stay_stored_by_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Dtype, cpu: bool
) -> None:
    monkeypatch.setattr(weights, "on_cpu", lambda: cpu)
    directory = write_model(tmp_path / "model", LLAMA)
    model = load_weights(directory, dtype, fast_blas=True, column_major=True).model
    assert all(memoryview(matrix).c_contiguous for matrix in matrices(model))


def matrices(model: Any) -> list[Any]:
    weights: Any = tree_flatten(model.parameters())
    return [weight for _, weight in weights if weight.ndim == 2]


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", LLAMA)
    edit_config(directory, model_type="from_the_future")
    with pytest.raises(UnsupportedModelError, match=r"mlx-lm .* does not run .*'from_the_future'"):
        load_weights(directory, "auto", fast_blas=True)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", LLAMA)
    (directory / "model.py").write_text("raise SystemExit")
    edit_config(directory, model_file="model.py")
    with pytest.raises(UnsupportedModelError, match="never run"):
        load_weights(directory, "auto", fast_blas=True)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", LLAMA)
    edit_config(directory, num_hidden_layers=3)
    with pytest.raises(CorruptModelError, match=r"do not fit config\.json"):
        load_weights(directory, "auto", fast_blas=True)


@pytest.mark.parametrize("damage", ["no config", "config", "no weights", "weights", "no model_type"])
def test_damage_is_a_model_error_of_one_line(tmp_path: Path, damage: str) -> None:
    directory = write_model(tmp_path / "model", LLAMA)
    config, tensors = directory / "config.json", directory / "model.safetensors"
    if damage == "no config":
        config.unlink()
    elif damage == "config":
        config.write_text("{")
    elif damage == "no weights":
        tensors.unlink()
    elif damage == "weights":
        tensors.write_bytes(b"\xff" * 100)
    else:
        config.write_text("{}")
    with pytest.raises(ModelError, match=str(directory)) as caught:
        load_weights(directory, "auto", fast_blas=True)
    assert "\n" not in str(caught.value)
