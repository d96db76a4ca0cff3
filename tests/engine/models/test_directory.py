"""Incomplete and damaged model directories are found before they are loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.gguf_files import tiny_llama

from mlxcel_trio.engine.models.directory import check_model_directory
from mlxcel_trio.engine.models.gguf import open_gguf, plan_conversion
from mlxcel_trio.errors import CorruptModelError, ModelError, ModelNotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with open_gguf(tiny_llama().write(tmp_path / "tiny.gguf")) as file:
        model = tmp_path / "model"
        model.mkdir()
        plan_conversion(file).write(model)
    return model


def shard(directory: Path, *present: str) -> None:
    """As if the weights were split over three files, of which ``present`` are there."""
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    (directory / INDEX).write_text(json.dumps({"weight_map": dict(zip("abc", names, strict=True))}))
    data = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).unlink()
    for number in present:
        (directory / f"model-0000{number}-of-00003.safetensors").write_bytes(data)


def test_a_complete_directory_passes(directory: Path) -> None:
    check_model_directory(directory)
    shard(directory, "1", "2", "3")
    check_model_directory(directory)


def cut(directory: Path, size: int) -> None:
    (directory / WEIGHTS).write_bytes((directory / WEIGHTS).read_bytes()[:size])


def header(directory: Path, text: bytes) -> None:
    (directory / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text)


BROKEN: dict[str, tuple[type[ModelError], str, Callable[[Path], object]]] = {
    "no config": (ModelNotFoundError, "no config.json", lambda d: (d / "config.json").unlink()),
    "config not JSON": (CorruptModelError, "not JSON", lambda d: (d / "config.json").write_text("{")),
    "config not UTF-8": (CorruptModelError, "not JSON", lambda d: (d / "config.json").write_bytes(b'{"\xff')),
    "config a list": (CorruptModelError, "not a JSON object", lambda d: (d / "config.json").write_text("[]")),
    "config deep": (CorruptModelError, "not JSON", lambda d: (d / "config.json").write_text("[" * 100_000)),
    "no model type": (UnsupportedModelError, "model_type", lambda d: (d / "config.json").write_text("{}")),
    "no tokenizer": (CorruptModelError, "no tokenizer", lambda d: (d / "tokenizer.json").unlink()),
    "no weights": (CorruptModelError, "no weights that mlx-lm loads", lambda d: (d / WEIGHTS).unlink()),
    "PyTorch only": (
        UnsupportedModelError, "mlx_lm.convert", lambda d: (d / WEIGHTS).rename(d / "pytorch_model.bin")
    ),
    "a shard missing": (CorruptModelError, "lacks 1 of 3", lambda d: shard(d, "1", "3")),
    "index without map": (CorruptModelError, "weight_map", lambda d: (d / INDEX).write_text("{}")),
    "weights cut by a byte": (CorruptModelError, "bytes instead of", lambda d: cut(d, -1)),
    "weights cut in the header": (CorruptModelError, "damaged", lambda d: cut(d, 100)),
    "weights empty": (CorruptModelError, "damaged", lambda d: cut(d, 0)),
    "weights not safetensors": (
        CorruptModelError, "damaged", lambda d: (d / WEIGHTS).write_bytes(b"x" * 999)
    ),
    "header not JSON": (CorruptModelError, "header", lambda d: header(d, b"{]")),
    "header a list": (CorruptModelError, "header", lambda d: header(d, b"[1]")),
    "header odd": (CorruptModelError, "header", lambda d: header(d, b'{"a": {"data_offsets": [0]}}')),
    "header typed": (CorruptModelError, "header", lambda d: header(d, b'{"a": {"data_offsets": [0, "1"]}}')),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_missing_or_damaged_is_named(directory: Path, case: str) -> None:
    error, says, damage = BROKEN[case]
    damage(directory)
    with pytest.raises(error) as caught:
        check_model_directory(directory)
    assert says in str(caught.value)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_of_gguf_files_says_to_name_the_file(tmp_path: Path) -> None:
    gguf = tiny_llama().write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelNotFoundError, match=f"name the file itself: {gguf}"):
        check_model_directory(tmp_path)
