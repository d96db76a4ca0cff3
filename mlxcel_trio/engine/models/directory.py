"""Checks that a directory holds a complete mlx-lm model, before minutes are spent loading it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mlxcel_trio.engine.models.safetensors import check_safetensors
from mlxcel_trio.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

_INDEX = "model.safetensors.index.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")


def check_model_directory(directory: Path) -> None:
    """Check config, tokenizer and every weight file of ``directory``.

    Weights are checked by header and size only. Raises ``ModelNotFoundError`` when it is no model
    directory, ``UnsupportedModelError`` when its weights are in another format, ``CorruptModelError``
    naming what is missing or damaged.
    """
    config = directory / "config.json"
    if not config.is_file():
        raise ModelNotFoundError(
            f"{directory} is not a model directory: it has no config.json{_gguf_hint(directory)}"
        )
    if not isinstance(_json_object(config).get("model_type"), str):
        raise UnsupportedModelError(f"{config} does not say which model it is: it has no model_type")
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise CorruptModelError(f"{directory} has no tokenizer ({', '.join(_TOKENIZER_FILES)})")
    for path in _weight_files(directory):
        check_safetensors(path)


def _weight_files(directory: Path) -> list[Path]:
    """The files that mlx-lm will load."""
    index = directory / _INDEX
    if index.is_file():
        weight_map = _json_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CorruptModelError(f"{index} has no weight_map; fetch it again")
        shards = sorted({str(shard) for shard in weight_map.values()})
        if missing := [shard for shard in shards if not (directory / shard).is_file()]:
            raise CorruptModelError(
                f"{directory} lacks {len(missing)} of {len(shards)} weight files, first {missing[0]!r}"
            )
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        if any(directory.glob("*.bin")) or any(directory.glob("*.pth")):
            raise UnsupportedModelError(
                f"{directory} has PyTorch weights only: convert it with mlx_lm.convert --hf-path {directory}"
            )
        raise CorruptModelError(
            f"{directory} has no weights that mlx-lm loads (model*.safetensors){_gguf_hint(directory)}"
        )
    return files


def _gguf_hint(directory: Path) -> str:
    file = next(iter(sorted(directory.glob("*.gguf"))), None)
    return "" if file is None else f"; to use a GGUF file, name the file itself: {file}"


def _json_object(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CorruptModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptModelError(f"{path} is not JSON; fetch it again") from error
    if not isinstance(content, dict):
        raise CorruptModelError(f"{path} is not a JSON object; fetch it again")
    return content
