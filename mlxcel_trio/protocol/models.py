"""The bodies of ``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class ModelObject(Struct, frozen=True):
    """A name that requests may use for the loaded model. ``created`` is in Unix seconds."""

    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: str = "mlxcel"


class ModelList(Struct, frozen=True):
    """All such names."""

    data: tuple[ModelObject, ...]
    object: Literal["list"] = "list"
