"""The sampling that a model's authors recommend, from its ``generation_config.json``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.errors import CorruptModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_VALID: dict[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value <= 2,
    "top_p": lambda value: 0 < value <= 1,
    "top_k": lambda value: value >= 0 and value == int(value),
    "min_p": lambda value: 0 <= value <= 1,
}


def sampling_defaults(directory: Path) -> SamplingDefaults:
    """The defaults for a model directory. What the file leaves open or says out of range stays standard.

    :raises CorruptModelError: there is such a file, and it is not a JSON object.
    """
    path = directory / "generation_config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return SamplingDefaults()
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CorruptModelError(f"{path} cannot be read: {error}. Download the model again.") from None
    named = {name: value for name, value in config.items() if name in _VALID and _is_number(value)}
    valid = {name: value for name, value in named.items() if _VALID[name](value)}
    return msgspec.convert(valid, SamplingDefaults, strict=False)  # 20.0 is a whole number too


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
