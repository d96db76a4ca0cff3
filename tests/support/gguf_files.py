"""Writes GGUF files, among them tiny llama models with random weights and a byte-level tokenizer.

Written from the format's description, independently of the package's reader.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

MetadataValue = bool | int | float | str | list[str] | list[int] | list[float]

# Stored type -> (its number, weights per block).
STORED_TYPES = {
    "F32": (0, 1),
    "F16": (1, 1),
    "Q4_0": (2, 32),
    "Q4_1": (3, 32),
    "Q8_0": (8, 32),
    "BF16": (30, 1),
}


@dataclass
class StoredTensor:
    """A tensor as it goes into the file; ``values`` is what its bytes mean."""

    type_id: int
    shape: tuple[int, ...]
    data: bytes
    values: Floats


def stored(values: Floats, type_name: str) -> StoredTensor:
    """Store ``values`` in one of ``STORED_TYPES``."""
    if type_name in ("F32", "F16", "BF16"):
        data, meant = _dense(values, type_name)
    else:
        data, meant = _quantised(values, type_name)
    return StoredTensor(STORED_TYPES[type_name][0], values.shape, data, meant)


def _dense(values: Floats, type_name: str) -> tuple[bytes, Floats]:
    if type_name == "F32":
        return values.astype("<f4").tobytes(), values
    if type_name == "F16":
        half = values.astype("<f2")
        return half.tobytes(), half.astype(np.float32)
    top = values.view(np.uint32) & 0xFFFF0000
    return (top >> 16).astype("<u2").tobytes(), top.astype(np.uint32).view(np.float32)


def _quantised(values: Floats, type_name: str) -> tuple[bytes, Floats]:
    """Block by block: scale (and minimum) in float16, then the quants."""
    data, meant = bytearray(), []
    for block in values.reshape(-1, 32):
        low, high = float(block.min()), float(block.max())
        if type_name == "Q4_1":
            scale, minimum = np.float16((high - low) / 15), np.float16(low)
            quants = _rounded((block - np.float32(minimum)) / np.float32(scale), 0, 15)
            data += scale.tobytes() + minimum.tobytes() + _packed_nibbles(quants)
            meant.append(quants * np.float32(scale) + np.float32(minimum))
        elif type_name == "Q4_0":
            scale = np.float16(max(-low, high) / 7)
            quants = _rounded(block / np.float32(scale), -8, 7)
            data += scale.tobytes() + _packed_nibbles(quants + 8)
            meant.append(quants * np.float32(scale))
        else:
            scale = np.float16(max(-low, high) / 127)
            quants = _rounded(block / np.float32(scale), -127, 127)
            data += scale.tobytes() + quants.astype(np.int8).tobytes()
            meant.append(quants * np.float32(scale))
    return bytes(data), np.stack(meant).reshape(values.shape).astype(np.float32)


def _rounded(values: Floats, low: int, high: int) -> Floats:
    return np.clip(np.round(values), low, high)


def _packed_nibbles(quants: Floats) -> bytes:
    nibbles = quants.astype(np.uint8)
    return (nibbles[:16] | nibbles[16:] << np.uint8(4)).tobytes()


def gguf_bytes(
    metadata: dict[str, MetadataValue],
    tensors: dict[str, StoredTensor],
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """The whole file."""
    if alignment != 32:
        metadata = {"general.alignment": alignment, **metadata}
    head = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    body = bytearray()
    for name, tensor in tensors.items():
        body += bytes(-len(body) % alignment)
        head += _text(name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += struct.pack("<IQ", tensor.type_id, len(body))
        body += tensor.data
    return bytes(head + bytes(-len(head) % alignment) + body)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: MetadataValue) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if all(isinstance(item, str) for item in value):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_text(str(item)) for item in value)
    kind, code = (6, "f") if any(isinstance(item, float) for item in value) else (5, "i")
    return struct.pack(f"<IIQ{len(value)}{code}", 9, kind, len(value), *value)


@dataclass
class TinyLlama:
    """A llama model that fits in a few kilobytes.

    ``weights`` are the float32 values that the stored tensors mean, under mlx-lm's names.
    """

    metadata: dict[str, MetadataValue]
    tensors: dict[str, StoredTensor]
    weights: dict[str, Floats] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        path.write_bytes(gguf_bytes(self.metadata, self.tensors))
        return path


HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 64, 2, 4, 2, 96
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "1 2"]


def tiny_llama(
    matrix_type: str = "F32",
    *,
    embedding_type: str | None = None,
    tied: bool = True,
    biases: bool = False,
    head: int = HIDDEN // HEADS,
) -> TinyLlama:
    """A model whose matrices are stored as ``matrix_type``; ``head`` is the length of one head."""
    rng = np.random.default_rng(7)
    model = TinyLlama(_tiny_metadata(head), {})
    vocabulary = len(_tiny_tokens())

    def add(name: str, module: str, shape: tuple[int, ...], heads: int = 0, kind: str = matrix_type) -> None:
        values = (rng.standard_normal(shape) / 8).astype(np.float32)
        if len(shape) == 1:
            values += 1
        tensor = stored(_interleaved(values, heads) if heads else values, kind)
        model.tensors[name] = tensor
        model.weights[module] = _separated(tensor.values, heads) if heads else tensor.values

    add(
        "token_embd.weight",
        "model.embed_tokens.weight",
        (vocabulary, HIDDEN),
        kind=embedding_type or matrix_type,
    )
    for layer in range(LAYERS):
        block, module = f"blk.{layer}", f"model.layers.{layer}"
        for name, part, rows, columns, heads in [
            ("attn_q", "self_attn.q_proj", HEADS * head, HIDDEN, HEADS),
            ("attn_k", "self_attn.k_proj", KV_HEADS * head, HIDDEN, KV_HEADS),
            ("attn_v", "self_attn.v_proj", KV_HEADS * head, HIDDEN, 0),
            ("attn_output", "self_attn.o_proj", HIDDEN, HEADS * head, 0),
            ("ffn_gate", "mlp.gate_proj", FEED_FORWARD, HIDDEN, 0),
            ("ffn_up", "mlp.up_proj", FEED_FORWARD, HIDDEN, 0),
            ("ffn_down", "mlp.down_proj", HIDDEN, FEED_FORWARD, 0),
        ]:
            add(f"{block}.{name}.weight", f"{module}.{part}.weight", (rows, columns), heads)
            if biases:
                add(f"{block}.{name}.bias", f"{module}.{part}.bias", (rows,), heads, kind="F32")
        add(f"{block}.attn_norm.weight", f"{module}.input_layernorm.weight", (HIDDEN,), kind="F32")
        add(f"{block}.ffn_norm.weight", f"{module}.post_attention_layernorm.weight", (HIDDEN,), kind="F32")
    add("output_norm.weight", "model.norm.weight", (HIDDEN,), kind="F32")
    if not tied:
        add("output.weight", "lm_head.weight", (vocabulary, HIDDEN))
    return model


def _interleaved(values: Floats, heads: int) -> Floats:
    """llama.cpp's order: row i of a head's first half, row i of its second half, row i + 1, ..."""
    out = np.empty_like(values)
    size = values.shape[0] // heads
    for start in range(0, values.shape[0], size):
        out[start : start + size : 2] = values[start : start + size // 2]
        out[start + 1 : start + size : 2] = values[start + size // 2 : start + size]
    return out


def _separated(values: Floats, heads: int) -> Floats:
    out = np.empty_like(values)
    size = values.shape[0] // heads
    for start in range(0, values.shape[0], size):
        out[start : start + size // 2] = values[start : start + size : 2]
        out[start + size // 2 : start + size] = values[start + 1 : start + size : 2]
    return out


def _tiny_tokens() -> list[str]:
    merged = [merge.replace(" ", "") for merge in MERGES]
    return [*SPECIAL_TOKENS, "<tool_call>", *sorted(ByteLevel.alphabet()), *merged]


def _tiny_metadata(head: int) -> dict[str, MetadataValue]:
    tokens = _tiny_tokens()
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.context_length": 256,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": head,
        "llama.attention.value_length": head,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": head,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL_TOKENS)
        + [4]
        + [1] * (len(tokens) - len(SPECIAL_TOKENS) - 1),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
    }
