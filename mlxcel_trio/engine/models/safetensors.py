"""Writing and checking safetensors files, one tensor at a time.

Format: eight bytes of header length (little-endian), a JSON header ``{name: {dtype, shape,
data_offsets}}`` padded with spaces, then the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import os
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mlxcel_trio.errors import CorruptModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_MAX_HEADER_BYTES = 100 * 2**20
_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}


class TensorSpec(NamedTuple):
    """A tensor to be written: ``dtype`` in safetensors' spelling (F32, F16, BF16, U32)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _ITEM_SIZES[self.dtype]


def write_safetensors(path: Path, specs: Iterable[TensorSpec], arrays: Iterator[NDArray[np.generic]]) -> None:
    """Write ``specs`` to ``path``, taking each one's bytes from ``arrays`` in the same order.

    Only one array is held at a time. Raises ``OSError`` as the disk does.
    """
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    specs = list(specs)
    for spec in specs:
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": spec.shape,
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for spec, array in zip(specs, arrays, strict=True):
            if array.nbytes != spec.nbytes:
                raise ValueError(f"{spec.name} has {array.nbytes} bytes instead of {spec.nbytes}")
            file.write(np.ascontiguousarray(array).data)


def check_safetensors(path: Path) -> None:
    """Check that ``path`` has the size its header announces, without reading the tensors.

    Raises ``CorruptModelError`` for a file that is cut short or not safetensors at all.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise CorruptModelError(f"{path} is damaged or no safetensors file; fetch it again")
            header = json.loads(file.read(length))
        expected = (
            8
            + length
            + max(
                (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"),
                default=0,
            )
        )
    except OSError as error:
        raise CorruptModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CorruptModelError(f"{path} has a damaged header; fetch it again") from error
    if size != expected:
        raise CorruptModelError(f"{path} has {size} bytes instead of {expected}; fetch it again")
