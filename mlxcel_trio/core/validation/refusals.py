"""The wording of errors: each names the field's path, what is wrong with it and what would be right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN_LENGTH = 64


def invalid(path: str, reason: str, *, code: str | None = None) -> InvalidRequestError:
    """The value at ``path`` cannot be accepted; ``reason`` is one or more sentences."""
    return InvalidRequestError(f"Invalid value for '{path}': {reason}", param=path, code=code)


def missing(path: str, expected: str) -> InvalidRequestError:
    """A required field is absent or null; ``expected`` says what belongs there."""
    return InvalidRequestError(f"'{path}' is missing: send {expected}.", param=path)


def shown(value: str) -> str:
    """A client's string, quoted, on one line and cut to a readable length."""
    return repr(value if len(value) <= _SHOWN_LENGTH else value[:_SHOWN_LENGTH] + "...")


def listed(values: Iterable[str]) -> str:
    """Quoted and separated by commas."""
    return ", ".join(f"'{value}'" for value in values)


def check_choice(path: str, value: str | None, accepted: Iterable[str]) -> None:
    """Refuse an unknown value of an enum; ``None`` is an absent field and passes.

    :raises InvalidRequestError: naming the field and the accepted values.
    """
    if value is not None and value not in accepted:
        raise invalid(path, f"{shown(value)} is not supported. Use one of {listed(accepted)}.")
