"""A GGUF file as an mlx-lm directory: planned completely, then written tensor by tensor."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel_trio.engine.models.gguf.llama import Llama, Weight, read_llama
from mlxcel_trio.engine.models.gguf.tokenizer import ConvertedTokenizer, read_tokenizer
from mlxcel_trio.engine.models.safetensors import TensorSpec, write_safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mlxcel_trio.engine.models.gguf.blocks import Array, Bytes
    from mlxcel_trio.engine.models.gguf.reader import GgufFile

CONVERTER_VERSION = 1
"""Part of every cache key: raise it when the converter writes something else for the same file."""

_SAMPLING = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}


@dataclass(frozen=True, slots=True)
class Conversion:
    """Everything that will be written, checked. It reads the weights from ``file``, which stays open.

    Dense weights and norms keep the precision of the file (mixed, mostly float16 and float32): the
    engine casts them as its ``--dtype`` says.
    """

    file: GgufFile
    llama: Llama
    tokenizer: ConvertedTokenizer

    @property
    def nbytes(self) -> int:
        """About how many bytes ``write`` writes."""
        weights = sum(spec.nbytes for weight in self.llama.weights for spec in self._specs(weight))
        return weights + len(self.tokenizer.tokenizer_json.encode()) + 2**20

    def write(self, directory: Path, *, sampling: Mapping[str, float] | None = None) -> None:
        """Write config, weights, tokenizer and generation config into the existing ``directory``.

        ``sampling`` adds to the defaults of ``generation_config.json``. Raises ``OSError`` as the disk
        does, ``CorruptModelError`` if the file shrinks meanwhile.
        """
        eos_ids = self.tokenizer.eos_ids
        token_ids: dict[str, object] = {"eos_token_id": eos_ids if len(eos_ids) > 1 else eos_ids[0]}
        if self.tokenizer.bos_id is not None:
            token_ids["bos_token_id"] = self.tokenizer.bos_id
        generation = token_ids | self._file_sampling() | dict(sampling or {})
        _write_json(directory / "config.json", self.llama.config | token_ids)
        _write_json(directory / "generation_config.json", generation)
        _write_json(directory / "tokenizer_config.json", self.tokenizer.config)
        (directory / "tokenizer.json").write_text(self.tokenizer.tokenizer_json, encoding="utf-8")
        specs = [spec for weight in self.llama.weights for spec in self._specs(weight)]
        write_safetensors(directory / "model.safetensors", specs, self._arrays())

    def _file_sampling(self) -> dict[str, object]:
        """Sampling defaults that newer files carry."""
        keys = {f"general.sampling.{key}": name for key, name in _SAMPLING.items()}
        found = {name: self.file.number(key) for key, name in keys.items() if key in self.file}
        return {name: int(value) if name == "top_k" else value for name, value in found.items()}

    def _specs(self, weight: Weight) -> Iterator[TensorSpec]:
        parts = self.file.block_type(weight.tensor).parts(weight.tensor.shape)
        for part in parts:
            yield TensorSpec(f"{weight.module}.{part.suffix or weight.parameter}", part.dtype, part.shape)

    def _arrays(self) -> Iterator[Array]:
        for weight in self.llama.weights:
            stored = self.file.stored_rows(weight.tensor, weight.tensor.shape[0])
            if weight.heads is not None:
                stored = separate_halves(stored, weight.heads)
            yield from self.file.block_type(weight.tensor).decode(stored)


def plan_conversion(file: GgufFile) -> Conversion:
    """Check that ``file`` can be converted, without reading weights or writing anything.

    Raises ``UnsupportedModelError`` naming what is not supported, ``CorruptModelError`` naming what is
    damaged.
    """
    llama = read_llama(file)
    tokenizer = read_tokenizer(file)
    rows, tokens = llama.weights[0].tensor.shape[0], len(file.texts("tokenizer.ggml.tokens"))
    if rows < tokens:
        raise file.corrupt(f"it has {tokens} tokens, but embeddings for {rows}")
    return Conversion(file, llama, tokenizer)


def separate_halves(rows: Bytes, heads: int) -> Bytes:
    """Put the rows of every head back as first half, second half.

    llama.cpp rotates neighbouring rows and so stores them alternating; mlx-lm, like the original
    weights, rotates row ``i`` with row ``i + half``.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
