"""JSON values that the decoder left undecoded: their bytes are a view of the request body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mlxcel_trio.core.validation.refusals import invalid

if TYPE_CHECKING:
    from msgspec import Raw


def is_null(raw: Raw) -> bool:
    """Whether the value is ``null``, or the key was absent."""
    return bytes(memoryview(raw)[:5]) == b"null"


def byte_length(raw: Raw) -> int:
    """Size of the value in bytes, as it was sent."""
    return memoryview(raw).nbytes


def decode_object(raw: Raw, path: str) -> dict[str, Any]:
    """Decode a value that has to be a JSON object; the result shares nothing with the body.

    :raises InvalidRequestError: another kind of value, text that is not UTF-8, nesting too deep.
    """
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise invalid(path, f"it is not valid JSON: {error}.") from None
    except RecursionError:
        raise invalid(path, "it is nested too deeply. Flatten it.") from None
    if not isinstance(value, dict):
        raise invalid(path, "it must be a JSON object.")
    return value
