"""The ways GGUF stores weights, and how each becomes something mlx can multiply with.

Quantised rows are a run of blocks of 32 or 256 weights. mlx's affine scheme has one ``scale`` and one
``bias`` per group of 32 (``weight = scale * quant + bias``), which holds every format below exactly
but for rounding of products to float16 - except Q6_K, whose groups have 16 weights: it becomes dense
float16. Five-bit quants are kept in eight bits.

Layouts: ``ggml-common.h`` and ``ggml-quants.c`` of ggml (facts only).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Bytes = NDArray[np.uint8]
Array = NDArray[np.generic]
Dtype = Literal["F32", "F16", "BF16", "U32"]

GROUP_SIZE = 32
"""Weights that share one scale in the output; the one size all of GGUF's formats divide into."""

_FOUR = np.uint8(4)


class Groups(NamedTuple):
    """Quantised weights, one row per group of 32: ``weight = scale * quant + bias``."""

    quants: Bytes
    scales: NDArray[np.float16]
    biases: NDArray[np.float16]


class Part(NamedTuple):
    """One array that a tensor becomes: ``suffix`` is "" for the tensor itself or ``scales``, ``biases``."""

    suffix: str
    dtype: Dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockType:
    """A storage format: ``nbytes`` bytes hold ``weights`` weights.

    ``bits`` is the width of a quant in the output, or ``None`` when the output is dense ``dtype``.
    """

    name: str
    weights: int
    nbytes: int
    dtype: Dtype = "F16"
    bits: int | None = None
    groups: Callable[[Bytes], Groups] | None = None
    dense: Callable[[Bytes], Array] | None = None

    def parts(self, shape: tuple[int, ...]) -> list[Part]:
        """What a tensor of ``shape`` becomes, in the order in which ``decode`` returns it."""
        if self.bits is None:
            return [Part("", self.dtype, shape)]
        *rows, columns = shape
        group_shape = (*rows, columns // GROUP_SIZE)
        return [
            Part("", "U32", (*rows, columns * self.bits // 32)),
            Part("scales", "F16", group_shape),
            Part("biases", "F16", group_shape),
        ]

    def decode(self, stored: Bytes) -> list[Array]:
        """Arrays with the bytes, though not the shapes, that ``parts`` announces."""
        blocks = stored.reshape(-1, self.nbytes)
        if self.groups is not None:
            quants, scales, biases = self.groups(blocks)
            return [_pack_nibbles(quants) if self.bits == 4 else quants, scales, biases]
        return [stored if self.dense is None else self.dense(blocks)]


def _pack_nibbles(quants: Bytes) -> Bytes:
    """Two quants per byte, the first in the low half: mlx's order inside its 32-bit words."""
    return quants[:, 0::2] | quants[:, 1::2] << _FOUR


def _nibbles(packed: Bytes) -> Bytes:
    """ggml's order: all low halves of a block, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> _FOUR], axis=-1)


def _half(blocks: Bytes, offset: int) -> NDArray[np.float16]:
    """The little-endian float16 at ``offset`` of every block."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").reshape(-1)


def _bits_of_word(blocks: Bytes, offset: int) -> Bytes:
    """The 32 bits at ``offset`` of every block as 32 zeros and ones, lowest first."""
    return np.unpackbits(blocks[:, offset : offset + 4], axis=1, bitorder="little")


def _any_bits() -> np.errstate:
    """A damaged file can hold infinities and worse: no reason for warnings."""
    return np.errstate(all="ignore")


def _centred(quants: Bytes, scales: NDArray[np.float16], zero: int) -> Groups:
    """Quants that count from ``-zero`` in the file and from 0 in mlx."""
    with _any_bits():
        return Groups(quants, scales, scales * np.float16(-zero))


def _q4_0(blocks: Bytes) -> Groups:
    return _centred(_nibbles(blocks[:, 2:]), _half(blocks, 0), 8)


def _q4_1(blocks: Bytes) -> Groups:
    return Groups(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> Groups:
    quants = _nibbles(blocks[:, 6:]) | _bits_of_word(blocks, 2) << _FOUR
    return _centred(quants, _half(blocks, 0), 16)


def _q5_1(blocks: Bytes) -> Groups:
    quants = _nibbles(blocks[:, 8:]) | _bits_of_word(blocks, 4) << _FOUR
    return Groups(quants, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Groups:
    # Flipping the sign bit of a two's complement byte adds 128.
    return _centred(blocks[:, 2:] ^ np.uint8(0x80), _half(blocks, 0), 128)


def _k_scales(blocks: Bytes) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Scale and bias of the eight groups of each 256-weight block of Q4_K and Q5_K.

    Twelve bytes hold eight 6-bit scales and eight 6-bit minima. The first four of each lie in the low
    six bits of bytes 0-3 and 4-7; of the last four, the low halves lie in bytes 8-11 and the top two
    bits in what bytes 0-7 have left.
    """
    packed = blocks[:, 4:16]
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, third & 0x0F | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    with _any_bits():
        return (
            (_half(blocks, 0)[:, None] * scales).astype(np.float16).reshape(-1),
            (-_half(blocks, 2)[:, None] * minima).astype(np.float16).reshape(-1),
        )


def _k_nibbles(packed: Bytes) -> Bytes:
    """128 bytes per block -> (blocks, 8 groups, 32): each 32 bytes hold two groups, low halves first."""
    return _nibbles(packed.reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes) -> Groups:
    return Groups(_k_nibbles(blocks[:, 16:]).reshape(-1, 32), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> Groups:
    # Bit g of byte i is the fifth bit of weight i in group g.
    fifth = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2)
    quants = _k_nibbles(blocks[:, 48:]) | fifth << _FOUR
    return Groups(quants.reshape(-1, 32), *_k_scales(blocks))


def _q6_k(blocks: Bytes) -> Array:
    # Each half of a block: 64 bytes of low nibbles, 32 bytes whose bit pairs top up four runs of 32.
    low = _nibbles(blocks[:, 0:128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    quants = (low | pairs << _FOUR).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)[:, :, None]
    with _any_bits():
        return (_half(blocks, 208).astype(np.float32)[:, None, None] * scales * quants).astype(np.float16)


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4, dtype="F32"),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18, bits=4, groups=_q4_0),
    3: BlockType("Q4_1", 32, 20, bits=4, groups=_q4_1),
    6: BlockType("Q5_0", 32, 22, bits=8, groups=_q5_0),
    7: BlockType("Q5_1", 32, 24, bits=8, groups=_q5_1),
    8: BlockType("Q8_0", 32, 34, bits=8, groups=_q8_0),
    12: BlockType("Q4_K", 256, 144, bits=4, groups=_q4_k),
    13: BlockType("Q5_K", 256, 176, bits=8, groups=_q5_k),
    14: BlockType("Q6_K", 256, 210, dense=_q6_k),
    30: BlockType("BF16", 1, 2, dtype="BF16"),
}

_UNREAD_TYPES = {
    10: "Q2_K", 11: "Q3_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


def type_name(type_id: int) -> str:
    """llama.cpp's name of a tensor type, for messages."""
    if type_id in BLOCK_TYPES:
        return BLOCK_TYPES[type_id].name
    return _UNREAD_TYPES.get(type_id, f"number {type_id}")
