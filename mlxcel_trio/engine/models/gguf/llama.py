"""What a GGUF file says about a llama model, in the words of mlx-lm's ``config.json`` and weights.

Everything is validated before any weight is read: a hyperparameter or tensor that would change the
model's arithmetic and is not understood is refused by name, never ignored.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_trio.engine.models.gguf.blocks import GROUP_SIZE
from mlxcel_trio.engine.models.gguf.reader import GgufFile, TensorInfo, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

Config = dict[str, object]

# Hyperparameters of other models that llama.cpp runs under this architecture's name, with the value
# that means "not in use".
_UNUSED_VALUES: dict[str, float] = {
    "expert_count": 0,
    "attention.sliding_window": 0,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.scale": 0,
    "logit_scale": 0,
    "residual_scale": 0,
    "embedding_scale": 0,
}

# Llama 3.1 and later, where config.json would have "rope_type": "llama3"; the factor varies.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions that tie hyperparameters to tensor shapes."""

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the file and its place in the mlx-lm model.

    ``heads`` is set where llama.cpp interleaved the two halves of every head's rows (the query and
    key projections): they have to be taken apart again.
    """

    tensor: TensorInfo
    module: str
    parameter: str
    heads: int | None = None


@dataclass(frozen=True, slots=True)
class Llama:
    """A llama model: ``config`` lacks only the token ids, which come from the tokenizer."""

    config: Config
    weights: list[Weight]


def read_llama(file: GgufFile) -> Llama:
    """Describe the model in ``file``.

    Raises ``UnsupportedModelError`` for another architecture and for features of llama models that
    mlx-lm's llama lacks, ``CorruptModelError`` when tensors are missing or do not fit together.
    """
    architecture = file.text("general.architecture")
    if architecture != "llama":
        raise file.unsupported(
            f"its architecture is {shown(architecture)}, and only llama is converted; "
            "use an mlx-lm directory or hub repository of this model instead"
        )
    if file.integer("split.count", 1) > 1:
        raise file.unsupported("it is one part of a split model; merge the parts with llama-gguf-split first")
    for key, unused in _UNUSED_VALUES.items():
        if file.number(f"llama.{key}", unused) != unused:
            raise file.unsupported(f"it uses llama.{key}, which is not supported")
    sizes = _read_sizes(file)
    weights = list(_match_tensors(file, sizes))
    return Llama(_config(file, sizes, weights), weights)


def _read_sizes(file: GgufFile) -> Sizes:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise file.corrupt("it has no token embedding")
    hidden = file.integer("llama.embedding_length")
    heads = file.integer("llama.attention.head_count")
    sizes = Sizes(
        hidden=hidden,
        layers=file.integer("llama.block_count"),
        feed_forward=file.integer("llama.feed_forward_length"),
        heads=heads,
        kv_heads=file.integer("llama.attention.head_count_kv", heads),
        head=file.integer("llama.attention.key_length", hidden // max(heads, 1)),
        vocabulary=embedding.shape[0],
    )
    if min(sizes.hidden, sizes.layers, sizes.feed_forward, heads, sizes.kv_heads, sizes.head) < 1:
        raise file.corrupt("one of its sizes is not positive")
    if heads % sizes.kv_heads or sizes.head % 2:
        raise file.corrupt(f"{heads} heads of {sizes.head} do not fit {sizes.kv_heads} key-value heads")
    if file.integer("llama.attention.value_length", sizes.head) != sizes.head:
        raise file.unsupported("its keys and values have different lengths")
    if file.integer("llama.rope.dimension_count", sizes.head) != sizes.head:
        raise file.unsupported("it rotates only a part of each head")
    return sizes


def _match_tensors(file: GgufFile, sizes: Sizes) -> Iterator[Weight]:
    """Every tensor of the file with its place, in the model's order; raises when the two differ."""
    unplaced = dict(file.tensors)
    for name, module, shape, heads in _expected(sizes):
        for parameter, parameter_shape in (("weight", shape), ("bias", shape[:1])):
            tensor = unplaced.pop(f"{name}.{parameter}", None)
            if tensor is None:
                if parameter == "weight" and name != "output":
                    raise file.corrupt(f"tensor '{name}.weight' is missing")
                continue
            if tensor.shape != parameter_shape:
                raise file.corrupt(
                    f"tensor '{name}.{parameter}' has shape {tensor.shape} instead of {parameter_shape}"
                )
            if file.block_type(tensor).weights > 1 and len(tensor.shape) == 1:
                raise file.corrupt(f"tensor '{name}.{parameter}' is quantised")
            yield Weight(tensor, module, parameter, heads)
    unplaced.pop("rope_freqs.weight", None)
    if unplaced:
        raise file.unsupported(f"it has tensor {shown(min(unplaced))}, which a plain llama model lacks")


def _expected(sizes: Sizes) -> Iterator[tuple[str, str, tuple[int, ...], int | None]]:
    """(name in GGUF, module in mlx-lm, shape of its weight, heads when interleaved)."""
    hidden, feed_forward = sizes.hidden, sizes.feed_forward
    queries, keys = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    yield "token_embd", "model.embed_tokens", (sizes.vocabulary, hidden), None
    for layer in range(sizes.layers):
        block, module = f"blk.{layer}", f"model.layers.{layer}"
        yield f"{block}.attn_norm", f"{module}.input_layernorm", (hidden,), None
        yield f"{block}.attn_q", f"{module}.self_attn.q_proj", (queries, hidden), sizes.heads
        yield f"{block}.attn_k", f"{module}.self_attn.k_proj", (keys, hidden), sizes.kv_heads
        yield f"{block}.attn_v", f"{module}.self_attn.v_proj", (keys, hidden), None
        yield f"{block}.attn_output", f"{module}.self_attn.o_proj", (hidden, queries), None
        yield f"{block}.ffn_norm", f"{module}.post_attention_layernorm", (hidden,), None
        yield f"{block}.ffn_gate", f"{module}.mlp.gate_proj", (feed_forward, hidden), None
        yield f"{block}.ffn_up", f"{module}.mlp.up_proj", (feed_forward, hidden), None
        yield f"{block}.ffn_down", f"{module}.mlp.down_proj", (hidden, feed_forward), None
    yield "output_norm", "model.norm", (hidden,), None
    yield "output", "lm_head", (sizes.vocabulary, hidden), None


def _config(file: GgufFile, sizes: Sizes, weights: list[Weight]) -> Config:
    context, epsilon = (
        file.integer("llama.context_length"),
        file.number("llama.attention.layer_norm_rms_epsilon"),
    )
    theta = file.number("llama.rope.freq_base", 10000.0)
    if context < 1 or epsilon <= 0 or theta <= 0:
        raise file.corrupt("its context length, norm epsilon or rope base is not positive")
    config: Config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "intermediate_size": sizes.feed_forward,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": context,
        "rms_norm_eps": epsilon,
        "rope_theta": theta,
        "attention_bias": _has_biases(file, weights, "self_attn", 4 * sizes.layers),
        "mlp_bias": _has_biases(file, weights, "mlp", 3 * sizes.layers),
        "tie_word_embeddings": not any(weight.module == "lm_head" for weight in weights),
    }
    if (scaling := _rope_scaling(file, sizes, theta)) is not None:
        config["rope_scaling"] = scaling
    if (quantization := _quantization(file, weights)) is not None:
        config["quantization"] = config["quantization_config"] = quantization
    return config


def _has_biases(file: GgufFile, weights: list[Weight], part: str, full: int) -> bool:
    """Whether the projections of ``part`` have biases; mlx-lm's llama has them on all or on none."""
    found = sum(1 for weight in weights if weight.parameter == "bias" and f".{part}." in weight.module)
    if found not in (0, full):
        raise file.unsupported(f"only {found} of {full} {part} projections have a bias")
    if any(weight.parameter == "bias" and "layernorm" in weight.module for weight in weights):
        raise file.unsupported("its norms have biases")
    return found > 0


def _quantization(file: GgufFile, weights: list[Weight]) -> Config | None:
    """mlx-lm's ``quantization`` entry: the most common width, and every module that differs from it."""
    bits = {weight.module: file.block_type(weight.tensor).bits for weight in weights}
    widths = {module: width for module, width in bits.items() if width is not None}
    if not widths:
        return None
    (common, _), *_ = Counter(widths.values()).most_common(1)
    quantization: Config = {"group_size": GROUP_SIZE, "bits": common, "mode": "affine"}
    for module, width in widths.items():
        if width != common:
            quantization[module] = {"group_size": GROUP_SIZE, "bits": width, "mode": "affine"}
    return quantization


def _rope_scaling(file: GgufFile, sizes: Sizes, theta: float) -> Config | None:
    """mlx-lm's ``rope_scaling``, or ``None`` for plain rope."""
    if (factors := file.tensors.get("rope_freqs.weight")) is not None:
        return _llama3_scaling(file, factors, sizes, theta)
    kind = file.text("llama.rope.scaling.type", "none")
    factor = file.number("llama.rope.scaling.factor", file.number("llama.rope.scale_linear", 1.0))
    if "llama.rope.scale_linear" in file and kind == "none":
        kind = "linear"
    if kind == "none":
        return None
    if kind != "linear":
        raise file.unsupported(f"its rope scaling is {shown(kind)}; none and linear are supported")
    if factor <= 0:
        raise file.corrupt("its rope scaling factor is not positive")
    return {"rope_type": "linear", "factor": factor}


def _llama3_scaling(file: GgufFile, tensor: TensorInfo, sizes: Sizes, theta: float) -> Config | None:
    """Recover Llama 3's rule from the per-frequency divisors that llama.cpp stored in its place."""
    if tensor.shape != (sizes.head // 2,) or file.block_type(tensor).name != "F32":
        raise file.corrupt("its rope_freqs do not fit its heads")
    divisors = [float(value) for value in file.stored_rows(tensor, 1).view("<f4").reshape(-1)]
    factor = divisors[-1]
    if all(divisor == 1.0 for divisor in divisors):
        return None
    for index, divisor in enumerate(divisors):
        wavelength = 2 * math.pi * theta ** (2 * index / sizes.head)
        if not math.isclose(divisor, _llama3_divisor(wavelength, factor), rel_tol=1e-3):
            raise file.unsupported("its rope_freqs follow another rule than Llama 3's")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def _llama3_divisor(wavelength: float, factor: float) -> float:
    """Short waves are kept, waves longer than the original context divided, those between blended."""
    turns = _LLAMA3_CONTEXT / wavelength
    if turns > _LLAMA3_HIGH:
        return 1.0
    if turns < _LLAMA3_LOW:
        return factor
    smooth = (turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    return 1.0 / ((1.0 - smooth) / factor + smooth) if factor else math.nan
