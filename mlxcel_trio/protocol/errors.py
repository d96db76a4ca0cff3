"""The error envelope: every HTTP error has this body, with all four keys."""

from __future__ import annotations

from msgspec import Struct


class ErrorBody(Struct, frozen=True):
    """What went wrong, in which field, and a machine-readable reason."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(Struct, frozen=True):
    """``{"error": {...}}``."""

    error: ErrorBody
