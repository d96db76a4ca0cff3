"""A converted GGUF model computes what the original computes, or is refused by name."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama
from mlx_lm.utils import load_model
from support.gguf_files import FEED_FORWARD, HEADS, HIDDEN, KV_HEADS, LAYERS, TinyLlama, stored, tiny_llama

from mlxcel_trio.engine.models.directory import check_model_directory
from mlxcel_trio.engine.models.gguf import open_gguf, plan_conversion
from mlxcel_trio.errors import CorruptModelError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

PROMPT = [[1, 40, 41, 50, 2, 60, 61, 7, 100, 101, 33, 5]]


def convert(model: TinyLlama, tmp_path: Path) -> Path:
    directory = tmp_path / "converted"
    directory.mkdir()
    with open_gguf(model.write(tmp_path / "tiny.gguf")) as file:
        plan_conversion(file).write(directory)
    check_model_directory(directory)
    return directory


def config_of(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return content


def logits_of(model: Any) -> NDArray[np.float32]:
    floats = (mx.float16, mx.bfloat16)
    model.apply(lambda value: value.astype(mx.float32) if value.dtype in floats else value)
    return np.array(model(mx.array(PROMPT)))


def converted_logits(model: TinyLlama, tmp_path: Path) -> NDArray[np.float32]:
    loaded, _ = load_model(convert(model, tmp_path))
    return logits_of(loaded)


def original_logits(model: TinyLlama, **config: object) -> NDArray[np.float32]:
    """mlx-lm's llama on the dense weights, configured here and not by the converter."""
    arguments: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5,
        "vocab_size": len(model.weights["model.embed_tokens.weight"]),
        "tie_word_embeddings": "lm_head.weight" not in model.weights,
        "max_position_embeddings": 256,
    }
    original = llama.Model(llama.ModelArgs.from_dict(arguments | config))
    original.load_weights([(name, mx.array(value)) for name, value in model.weights.items()])
    return logits_of(original)


@pytest.mark.parametrize("matrix_type", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_logits_equal_the_original(tmp_path: Path, matrix_type: str) -> None:
    model = tiny_llama(matrix_type)
    np.testing.assert_allclose(converted_logits(model, tmp_path), original_logits(model), atol=2e-4)


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({"tied": False}, {}),
        ({"biases": True}, {"attention_bias": True, "mlp_bias": True}),
        ({"head": 32}, {"head_dim": 32}),
    ],
    ids=["own output matrix", "biases", "heads wider than hidden / heads"],
)
def test_logits_of_variants(tmp_path: Path, options: dict[str, Any], config: dict[str, Any]) -> None:
    model = tiny_llama("F16", **options)
    np.testing.assert_allclose(converted_logits(model, tmp_path), original_logits(model, **config), atol=2e-4)


def test_formats_may_be_mixed_in_one_file(tmp_path: Path) -> None:
    """As in the demo model, whose matrices are Q4_1 and whose embedding is Q8_0."""
    model = tiny_llama("Q4_1", embedding_type="Q8_0")
    dense = "blk.1.ffn_up.weight"
    model.tensors[dense] = stored(model.weights["model.layers.1.mlp.up_proj.weight"], "F16")
    model.weights["model.layers.1.mlp.up_proj.weight"] = model.tensors[dense].values
    expected = original_logits(model)
    directory = convert(model, tmp_path)
    quantization = config_of(directory)["quantization"]
    assert (quantization["bits"], quantization["group_size"]) == (4, 32)
    assert quantization["model.embed_tokens"] == {"bits": 8, "group_size": 32, "mode": "affine"}
    loaded, _ = load_model(directory)
    np.testing.assert_allclose(logits_of(loaded), expected, atol=2e-4)


def test_config_says_what_the_file_says(tmp_path: Path) -> None:
    model = tiny_llama()
    model.metadata |= {"llama.rope.freq_base": 50000.0, "llama.context_length": 512}
    config = config_of(convert(model, tmp_path))
    expected = {
        "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "head_dim": 16,
        "intermediate_size": FEED_FORWARD, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "vocab_size": 265, "max_position_embeddings": 512, "rope_theta": 50000.0, "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": [2, 0],
    }  # fmt: skip
    assert {key: config[key] for key in expected} == expected
    assert config["rms_norm_eps"] == pytest.approx(1e-5)
    assert not {"quantization", "rope_scaling"} & set(config)


def test_sampling_defaults_of_the_file_are_kept(tmp_path: Path) -> None:
    model = tiny_llama()
    model.metadata |= {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    with open_gguf(model.write(tmp_path / "m.gguf")) as file:
        plan_conversion(file).write(tmp_path, sampling={"top_p": 0.25})
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {
        "eos_token_id": [2, 0], "bos_token_id": 1, "temperature": 0.5, "top_k": 20, "top_p": 0.25
    }  # fmt: skip


def test_linear_rope_scaling(tmp_path: Path) -> None:
    model = tiny_llama()
    model.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    expected = original_logits(model, rope_scaling={"rope_type": "linear", "factor": 4.0})
    np.testing.assert_allclose(converted_logits(model, tmp_path), expected, atol=2e-4)


def llama3_divisors(factor: float, theta: float, head: int) -> NDArray[np.float32]:
    """The rule of Llama 3.1 (low 1, high 4, 8192 original positions), written down a second time."""
    divisors = []
    for index in range(0, head, 2):
        wavelength = 2 * math.pi * theta ** (index / head)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def llama3_model(factor: float) -> TinyLlama:
    model = tiny_llama(head=32)
    model.metadata["llama.rope.freq_base"] = 500000.0
    model.tensors["rope_freqs.weight"] = stored(llama3_divisors(factor, 500000.0, 32), "F32")
    return model


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_is_recovered_from_its_divisors(tmp_path: Path, factor: float) -> None:
    directory = convert(llama3_model(factor), tmp_path)
    assert config_of(directory)["rope_scaling"] == {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip


def test_llama3_rope_of_ones_is_plain(tmp_path: Path) -> None:
    assert "rope_scaling" not in config_of(convert(llama3_model(1.0), tmp_path))


def test_other_rope_divisors_are_unsupported(tmp_path: Path) -> None:
    model = llama3_model(8.0)
    model.tensors["rope_freqs.weight"] = stored(np.linspace(1, 8, 16, dtype=np.float32), "F32")
    with pytest.raises(UnsupportedModelError, match="rope_freqs"):
        convert(model, tmp_path)


UNSUPPORTED: dict[str, Callable[[TinyLlama], object]] = {
    "'qwen2'": lambda model: model.metadata.update({"general.architecture": "qwen2"}),
    "'yarn'": lambda model: model.metadata.update({"llama.rope.scaling.type": "yarn"}),
    "expert_count": lambda model: model.metadata.update({"llama.expert_count": 8}),
    "sliding_window": lambda model: model.metadata.update({"llama.attention.sliding_window": 4096}),
    "logit_scale": lambda model: model.metadata.update({"llama.logit_scale": 0.5}),
    "split": lambda model: model.metadata.update({"split.count": 3}),
    "part of each head": lambda model: model.metadata.update({"llama.rope.dimension_count": 8}),
    "different lengths": lambda model: model.metadata.update({"llama.attention.value_length": 8}),
    "'blk.0.ffn_gate_inp.weight'": lambda model: model.tensors.update(
        {"blk.0.ffn_gate_inp.weight": model.tensors["output_norm.weight"]}
    ),
    "IQ4_XS": lambda model: setattr(model.tensors["blk.0.attn_q.weight"], "type_id", 23),
    "1 of 8 self_attn": lambda model: model.tensors.update(
        {"blk.0.attn_q.bias": model.tensors["output_norm.weight"]}
    ),
    "norms have biases": lambda model: model.tensors.update(
        {"blk.0.attn_norm.bias": model.tensors["output_norm.weight"]}
    ),
}


@pytest.mark.parametrize("says", UNSUPPORTED)
def test_what_is_not_supported_is_named(tmp_path: Path, says: str) -> None:
    model = tiny_llama()
    UNSUPPORTED[says](model)
    with pytest.raises(UnsupportedModelError) as caught:
        convert(model, tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


CORRUPT: dict[str, Callable[[TinyLlama], object]] = {
    "'blk.1.ffn_up.weight' is missing": lambda model: model.tensors.pop("blk.1.ffn_up.weight"),
    "no token embedding": lambda model: model.tensors.pop("token_embd.weight"),
    "'blk.2.attn_norm.weight' is missing": lambda model: model.metadata.update(
        {"llama.block_count": 2**32 - 1}
    ),
    "shape (64, 64) instead of (32, 64)": lambda model: model.tensors.update(
        {"blk.0.attn_k.weight": model.tensors["blk.0.attn_q.weight"]}
    ),
    "not positive": lambda model: model.metadata.update({"llama.attention.head_count": 0}),
    "do not fit 3": lambda model: model.metadata.update({"llama.attention.head_count_kv": 3}),
    "norm epsilon": lambda model: model.metadata.update({"llama.attention.layer_norm_rms_epsilon": 0.0}),
    "no llama.context_length": lambda model: model.metadata.pop("llama.context_length"),
    "is quantised": lambda model: model.tensors.update(
        {"output_norm.weight": stored(model.weights["model.norm.weight"], "Q8_0")}
    ),
    "embeddings for 265": lambda model: (
        model.metadata["tokenizer.ggml.tokens"].extend(["x1", "x2"]),  # type: ignore[union-attr, list-item]
        model.metadata.pop("tokenizer.ggml.token_type"),
    ),
}


@pytest.mark.parametrize("says", CORRUPT)
def test_what_does_not_fit_together_is_named(tmp_path: Path, says: str) -> None:
    model = tiny_llama()
    CORRUPT[says](model)
    with pytest.raises(CorruptModelError) as caught:
        convert(model, tmp_path)
    assert says in str(caught.value)


def test_a_padded_vocabulary_is_accepted(tmp_path: Path) -> None:
    model = tiny_llama()
    tokens, types = model.metadata["tokenizer.ggml.tokens"], model.metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    model.metadata |= {
        "tokenizer.ggml.tokens": [*map(str, tokens[:-1])],
        "tokenizer.ggml.token_type": [*map(int, types[:-1])],
    }
    model.metadata["tokenizer.ggml.merges"] = ["Ġ t"]
    assert config_of(convert(model, tmp_path))["vocab_size"] == 265
