"""Every storage format, against a decoder that follows its description one weight at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import pytest

from mlxcel_trio.engine.models.gguf.blocks import BLOCK_TYPES, BlockType, type_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

Decoder = Callable[[bytes], list[float]]

NUMPY_DTYPES = {"U32": np.uint32, "F16": np.float16, "BF16": np.uint16, "F32": np.float32}
BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}


def half(data: bytes, offset: int) -> float:
    return float(struct.unpack_from("<e", data, offset)[0])


def nibble(data: bytes, index: int) -> int:
    """Weight ``index`` of 32: low halves of 16 bytes, then high halves."""
    return data[index % 16] >> (4 if index >= 16 else 0) & 15


def bit(data: bytes, index: int) -> int:
    return data[index // 8] >> index % 8 & 1


def q4_0(data: bytes) -> list[float]:
    return [half(data, 0) * (nibble(data[2:], i) - 8) for i in range(32)]


def q4_1(data: bytes) -> list[float]:
    return [half(data, 0) * nibble(data[4:], i) + half(data, 2) for i in range(32)]


def q5_0(data: bytes) -> list[float]:
    return [half(data, 0) * (nibble(data[6:], i) + 16 * bit(data[2:6], i) - 16) for i in range(32)]


def q5_1(data: bytes) -> list[float]:
    return [half(data, 0) * (nibble(data[8:], i) + 16 * bit(data[4:8], i)) + half(data, 2) for i in range(32)]


def q8_0(data: bytes) -> list[float]:
    return [half(data, 0) * struct.unpack_from("b", data, 2 + i)[0] for i in range(32)]


def k_scale(packed: bytes, group: int) -> tuple[int, int]:
    """The 6-bit scale and minimum of one of eight groups."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    return (
        packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
        packed[group + 4] >> 4 | packed[group] >> 6 << 4,
    )


def q4_k(data: bytes) -> list[float]:
    values = []
    for index in range(256):
        group, place = divmod(index, 32)
        scale, minimum = k_scale(data[4:16], group)
        quant = data[16 + group // 2 * 32 + place] >> group % 2 * 4 & 15
        values.append(half(data, 0) * scale * quant - half(data, 2) * minimum)
    return values


def q5_k(data: bytes) -> list[float]:
    values = []
    for index in range(256):
        group, place = divmod(index, 32)
        scale, minimum = k_scale(data[4:16], group)
        quant = data[48 + group // 2 * 32 + place] >> group % 2 * 4 & 15
        quant |= (data[16 + place] >> group & 1) << 4
        values.append(half(data, 0) * scale * quant - half(data, 2) * minimum)
    return values


def q6_k(data: bytes) -> list[float]:
    values = []
    for index in range(256):
        side, within = divmod(index, 128)
        run, place = divmod(within, 32)
        low = data[side * 64 + run % 2 * 32 + place] >> run // 2 * 4 & 15
        top = data[128 + side * 32 + place] >> run * 2 & 3
        scale = struct.unpack_from("b", data, 192 + index // 16)[0]
        values.append(half(data, 208) * scale * ((low | top << 4) - 32))
    return values


REFERENCES: dict[str, tuple[Decoder, list[int]]] = {
    # decoder, offsets of the float16 values in a block
    "Q4_0": (q4_0, [0]),
    "Q4_1": (q4_1, [0, 2]),
    "Q5_0": (q5_0, [0]),
    "Q5_1": (q5_1, [0, 2]),
    "Q8_0": (q8_0, [0]),
    "Q4_K": (q4_k, [0, 2]),
    "Q5_K": (q5_k, [0, 2]),
    "Q6_K": (q6_k, [208]),
}


def random_blocks(block: BlockType, count: int, halves: list[int]) -> NDArray[np.uint8]:
    rng = np.random.default_rng(block.nbytes)
    data = rng.integers(0, 256, (count, block.nbytes), dtype=np.uint8)
    for offset in halves:
        scales = (rng.standard_normal(count) / 50).astype(np.float16)
        data[:, offset : offset + 2] = scales.view(np.uint8).reshape(count, 2)
    return data


def multiplied(block: BlockType, stored: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """What mlx takes the decoded parts to mean."""
    parts = [
        mx.array(np.ascontiguousarray(array).reshape(-1).view(NUMPY_DTYPES[part.dtype]).reshape(part.shape))
        for part, array in zip(block.parts(shape), block.decode(stored), strict=True)
    ]
    if block.bits is None:
        return np.array(parts[0].view(mx.bfloat16).astype(mx.float32) if block.dtype == "BF16" else parts[0])
    weight, scales, biases = parts
    floats = mx.dequantize(
        weight, scales.astype(mx.float32), biases.astype(mx.float32), group_size=32, bits=block.bits
    )
    return np.array(floats)


@pytest.mark.parametrize("name", REFERENCES)
def test_quantised_blocks_mean_what_the_format_says(name: str) -> None:
    decoder, halves = REFERENCES[name]
    block = BLOCKS[name]
    data = random_blocks(block, 12, halves)
    expected = np.array([decoder(bytes(row)) for row in data]).reshape(6, -1)
    got = multiplied(block, data.reshape(6, -1), expected.shape)
    # K formats multiply two numbers per group, and the product is rounded to float16.
    tolerance = np.abs(expected).max() * 2**-11 if name.endswith("K") else 1e-6
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_dense_weights_keep_their_bits(name: str) -> None:
    values = np.array([[1.0, -2.5, 0.15625, 1024.0]], np.float32)
    if name == "BF16":
        data = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    else:
        data = values.astype(NUMPY_DTYPES[name]).view(np.uint8)
    np.testing.assert_array_equal(multiplied(BLOCKS[name], data, values.shape), values)


def test_every_quantised_format_is_covered_above() -> None:
    assert {block.name for block in BLOCK_TYPES.values() if block.weights > 1} == set(REFERENCES)


def test_types_have_names() -> None:
    assert [type_name(number) for number in (3, 23, 99)] == ["Q4_1", "IQ4_XS", "number 99"]
