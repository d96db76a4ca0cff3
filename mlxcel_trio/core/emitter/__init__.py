"""Segments in, numbered stream events and the final response out."""

from mlxcel_trio.core.emitter.machine import (
    Cancelled,
    Completed,
    Emitter,
    Ending,
    Failed,
    LengthStop,
)

__all__ = ["Cancelled", "Completed", "Emitter", "Ending", "Failed", "LengthStop"]
