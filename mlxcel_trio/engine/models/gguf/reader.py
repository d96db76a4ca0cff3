"""Reads a GGUF file, trusting nothing in it.

Layout (the GGUF specification in ggml's ``docs/gguf.md``, versions 2 and 3, little-endian): magic,
version, tensor count, key count; the keys with typed values; a table of tensors; padding to the
alignment; the tensors' bytes. Nothing is allocated for a count or length before the bytes for it were
seen, so whatever a file claims, time and memory stay within a small multiple of its size.
"""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, prod
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from mlxcel_trio.engine.models.gguf.blocks import BLOCK_TYPES, BlockType, Bytes, type_name
from mlxcel_trio.errors import CorruptModelError, DownloadError, ModelNotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Scalar = bool | int | float | str
Value = Scalar | list[Scalar]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table. ``shape`` is row-major; ``offset`` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


class GgufFile:
    """An open file: its metadata by type-checked accessors, its tensors as stored bytes.

    Accessors raise ``CorruptModelError`` for a value of the wrong type, and for a missing one unless a
    default is given.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        cursor = _Cursor(self, os.fstat(file.fileno()).st_size)
        self._metadata, self.tensors = _read_header(self, cursor)

    def corrupt(self, reason: str) -> CorruptModelError:
        """The error for a file that is damaged; ``reason`` is a clause about "it"."""
        return CorruptModelError(f"{self.path} is not a usable GGUF file: {reason}; fetch it again")

    def unsupported(self, reason: str) -> UnsupportedModelError:
        """The error for a well-formed file of a kind that is not run; ``reason`` is a clause about "it"."""
        return UnsupportedModelError(f"{self.path} cannot be run: {reason}")

    def __contains__(self, key: str) -> bool:
        return key in self._metadata

    def integer(self, key: str, default: int | None = None) -> int:
        """A number without a fraction, of any of GGUF's integer types."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.corrupt(f"its {key} is not an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise self.corrupt(f"its {key} is not a number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.corrupt(f"its {key} is not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.corrupt(f"its {key} is not a boolean")
        return value

    def texts(self, key: str) -> list[str]:
        """An array of strings."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.corrupt(f"its {key} is not a list of strings")
        return [str(item) for item in value]

    def numbers(self, key: str) -> list[float]:
        """An array of finite numbers."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            raise self.corrupt(f"its {key} is not a list of numbers")
        numbers = [float(item) for item in value]
        if not all(map(isfinite, numbers)):
            raise self.corrupt(f"its {key} has a value that is not a number")
        return numbers

    def block_type(self, tensor: TensorInfo) -> BlockType:
        """How ``tensor`` is stored; ``UnsupportedModelError`` names a format that is not read."""
        block = BLOCK_TYPES.get(tensor.type_id)
        if block is None:
            raise self.unsupported(
                f"tensor {shown(tensor.name)} has type {type_name(tensor.type_id)}; "
                f"readable types are {', '.join(known.name for known in BLOCK_TYPES.values())}"
            )
        return block

    def stored_rows(self, tensor: TensorInfo, rows: int) -> Bytes:
        """The stored bytes of ``tensor`` as ``rows`` equal parts."""
        block = self.block_type(tensor)
        self._file.seek(tensor.offset)
        stored = self.read(prod(tensor.shape) // block.weights * block.nbytes)
        return np.frombuffer(stored, np.uint8).reshape(rows, -1)

    def read(self, nbytes: int) -> bytes:
        """The next ``nbytes`` bytes, which the file was seen to have."""
        try:
            taken = self._file.read(nbytes)
        except OSError as error:
            raise DownloadError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(taken) != nbytes:
            raise self.corrupt("it shrank while it was read")
        return taken

    def _value(self, key: str, default: Scalar | None) -> Value:
        value = self._metadata.get(key, default)
        if value is None:
            raise self.corrupt(f"it has no {key}")
        return value


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufFile]:
    """Open ``path`` and read its header.

    Raises ``ModelNotFoundError`` when it cannot be opened, ``CorruptModelError`` when it is damaged or
    no GGUF file, ``UnsupportedModelError`` for versions other than 2 and 3.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be opened: {error.strerror}") from error
    with file:
        yield GgufFile(path, file)


def shown(name: str) -> str:
    """A name from a file, fit for a one-line message."""
    return repr(name if len(name) <= 60 else name[:60] + "...")


class _Cursor:
    """Takes values off the front of the file, never more than it has."""

    def __init__(self, owner: GgufFile, size: int) -> None:
        self._owner = owner
        self.size = size
        self.position = 0

    @property
    def left(self) -> int:
        return self.size - self.position

    def take(self, nbytes: int) -> bytes:
        if nbytes > self.left:
            raise self._owner.corrupt(f"it ends at byte {self.size}, in the middle of its header")
        self.position += nbytes
        return self._owner.read(nbytes)

    def number(self, code: str) -> int:
        value: int
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize(code)))
        return value

    def string(self) -> str:
        try:
            return self.take(self.number("Q")).decode()
        except UnicodeDecodeError as error:
            raise self._owner.corrupt(f"the text before byte {self.position} is not UTF-8") from error

    def value(self) -> Value:
        kind = self.number("I")
        return self._array() if kind == _ARRAY else self._scalar(kind)

    def _scalar(self, kind: int) -> Scalar:
        if kind == _STRING:
            return self.string()
        code = _NUMBERS.get(kind)
        if code is None:
            raise self._owner.corrupt(f"value type {kind} at byte {self.position} does not exist")
        return self.number(code)

    def _array(self) -> list[Scalar]:
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        code = _NUMBERS.get(kind)
        if code is None:
            raise self._owner.corrupt(f"list type {kind} at byte {self.position} is not allowed")
        stored = self.take(count * struct.calcsize(code))
        items: list[Scalar] = np.frombuffer(stored, np.dtype(code).newbyteorder("<")).tolist()
        return items


def _read_header(owner: GgufFile, cursor: _Cursor) -> tuple[dict[str, Value], dict[str, TensorInfo]]:
    if cursor.left < len(_MAGIC) or cursor.take(len(_MAGIC)) != _MAGIC:
        raise owner.corrupt("it does not begin with the letters GGUF")
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise owner.unsupported(
            f"it is of GGUF version {version}, big-endian or unknown; 2 and 3 can be read"
        )
    tensor_count, key_count = cursor.number("Q"), cursor.number("Q")
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.string()
        if key in metadata:
            raise owner.corrupt(f"key {shown(key)} appears twice")
        metadata[key] = cursor.value()
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
        raise owner.corrupt("its general.alignment is not a multiple of 8")
    rows = [_read_tensor(owner, cursor) for _ in range(tensor_count)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for row in rows:
        if row.name in tensors:
            raise owner.corrupt(f"tensor {shown(row.name)} appears twice")
        tensors[row.name] = _placed(owner, row, data_start, cursor.size)
    return metadata, tensors


def _read_tensor(owner: GgufFile, cursor: _Cursor) -> TensorInfo:
    """A table row whose offset still counts from the start of the tensors' bytes."""
    name = cursor.string()
    dimensions = cursor.number("I")
    if dimensions > _MAX_DIMENSIONS:
        raise owner.corrupt(f"tensor {shown(name)} claims {dimensions} dimensions")
    # The file lists the fastest dimension first.
    shape = tuple(reversed([cursor.number("Q") for _ in range(dimensions)]))
    return TensorInfo(name, shape, type_id=cursor.number("I"), offset=cursor.number("Q"))


def _placed(owner: GgufFile, row: TensorInfo, data_start: int, file_size: int) -> TensorInfo:
    """The row with its absolute offset, once its bytes are known to lie inside the file."""
    placed = TensorInfo(row.name, row.shape, row.type_id, data_start + row.offset)
    block = BLOCK_TYPES.get(row.type_id)
    weights = prod(row.shape)
    if weights < 1:
        raise owner.corrupt(f"tensor {shown(row.name)} is empty")
    if block is None:
        nbytes = 0
    elif row.shape[-1:] and row.shape[-1] % block.weights:
        raise owner.corrupt(f"rows of tensor {shown(row.name)} are not whole {block.name} blocks")
    else:
        nbytes = weights // block.weights * block.nbytes
    if placed.offset + nbytes > file_size:
        raise owner.corrupt(
            f"it has {file_size} bytes, but tensor {shown(row.name)} ends at {placed.offset + nbytes}"
        )
    return placed
