"""Writes the weights that our server computes with as a model directory, for a peer that would load others.

A process of its own, started as ``python -m benchmarks.serving.equal_copy SOURCE TARGET``. It prints an
:class:`EqualCopy` as JSON.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mlxcel_trio.engine.mlx_runtime import import_mlx


class EqualCopy(Struct, frozen=True):
    """``openblas``: the library that our server loads on this machine, empty for none; ``coretype``: the
    kernels that it is told to use, empty for its own choice."""

    dtype: str
    openblas: str
    coretype: str


def main() -> None:
    """Write the copy."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    blas = import_mlx()
    from mlx_lm.utils import save_model

    from mlxcel_trio.engine.weights import load_weights

    weights = load_weights(source, "auto", fast_blas=not blas.slow)
    save_model(target, weights.model)
    config = {**weights.config}
    if not _is_quantised(weights.model):
        for key in ("quantization", "quantization_config"):
            config.pop(key, None)
    (target / "config.json").write_bytes(msgspec.json.encode(config))
    _copy_the_rest(source, target)
    copy = EqualCopy(weights.dtype, _loaded_openblas(), os.environ.get("OPENBLAS_CORETYPE", ""))
    print(msgspec.json.encode(copy).decode(), flush=True)


def _is_quantised(model: Any) -> bool:
    from mlx.utils import tree_flatten

    weights: Any = tree_flatten(model.parameters())
    return any(name.endswith(".scales") for name, _ in weights)


def _copy_the_rest(source: Path, target: Path) -> None:
    """The tokenizer and whatever else is not a weight."""
    for file in source.iterdir():
        if file.is_file() and file.name != "config.json" and "safetensors" not in file.name:
            shutil.copy(file, target)


def _loaded_openblas() -> str:
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:  # not Linux, where MLX brings a BLAS of its own
        return ""
    found = re.search(r"(/\S*libopenblas\S*)$", mapped, re.MULTILINE)
    return found[1] if found else ""


if __name__ == "__main__":
    main()
