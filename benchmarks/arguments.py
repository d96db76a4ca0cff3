"""Values on a command line that argparse cannot check by itself."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Item = TypeVar("Item")


def at_least(minimum: int) -> Callable[[str], int]:
    """A reader of whole numbers from ``minimum`` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} on")
        return int(text)

    return read


def list_of(read: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    """A reader of comma-separated values, each read by ``read``."""

    def read_all(text: str) -> tuple[Item, ...]:
        return tuple(read(part.strip()) for part in text.split(","))

    return read_all
