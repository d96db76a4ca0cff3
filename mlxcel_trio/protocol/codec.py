"""Bytes to structs and back.

Requests are decoded straight into their structs. A failure becomes an :class:`InvalidRequestError` whose
``param`` is the path of the offending field in the API's own notation: msgspec says ``$.input[0].role``,
the error says ``input[0].role``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from mlxcel_trio.errors import InvalidRequestError

T = TypeVar("T", bound=Struct)

_encoder = msgspec.json.Encoder()


class _ItemsOnly(Struct):
    input: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)


def decode(body: bytes | memoryview, kind: type[T]) -> T:
    """Decode the body of a request without copying it.

    ``Raw`` fields of the result are views that keep ``body`` alive.

    :raises InvalidRequestError: malformed JSON, bad UTF-8, a wrong type, nesting too deep.
    """
    try:
        decoded: T = _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(error, body) from None
    except msgspec.DecodeError as error:
        message = f"The request body is not valid JSON: {error}. Send one JSON object encoded in UTF-8."
        raise InvalidRequestError(message) from None
    except UnicodeError:
        raise InvalidRequestError("The request body is not valid UTF-8. Encode the JSON in UTF-8.") from None
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply. Flatten it.") from None
    return decoded


def encode(message: Struct) -> bytes:
    """JSON bytes of any wire struct."""
    return _encoder.encode(message)


def encode_to_keep(message: object) -> bytes:
    """As :func:`encode`, for what is stored: the encoder's result takes up to half as much memory again."""
    return bytes(memoryview(_encoder.encode(message)))


def _wrong_type(error: msgspec.ValidationError, body: bytes | memoryview) -> InvalidRequestError:
    # msgspec writes "Expected `str`, got `int` - at `$.input[0].role`"; a key of an object is `[...]`.
    reason, _, place = str(error).partition(" - at `")
    path = place.rstrip("`").removeprefix("key in `").lstrip("$").lstrip(".").removesuffix("[...]")
    if not path:
        return InvalidRequestError(f"The request body has the wrong type: {reason}.")
    what = f" in an item of type '{name}'" if (name := _item_type(path, body)) else ""
    return InvalidRequestError(f"Invalid value for '{path}'{what}: {reason}.", param=path)


def _item_type(path: str, body: bytes | memoryview) -> str | None:
    """The type of the input item that ``path`` leads into; a field may be wrong since the item is foreign."""
    match = re.match(r"(input|items)\[(\d+)\]\.", path)
    if match is None:
        return None
    try:
        items = msgspec.json.decode(body, type=_ItemsOnly)
        item = getattr(items, match[1])[int(match[2])]
    except (msgspec.MsgspecError, UnicodeError, RecursionError, IndexError):
        return None  # something else is wrong too, further on
    name = item.get("type")
    return name if isinstance(name, str) else None
