"""Finding markers in text that arrives in pieces of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def find_first(text: str, markers: Iterable[str]) -> tuple[int, str] | None:
    """Leftmost occurrence of any marker as (position, marker); the longest one where several begin."""
    best: tuple[int, str] | None = None
    for marker in markers:
        at = text.find(marker)
        if at >= 0 and (best is None or (at, -len(marker)) < (best[0], -len(best[1]))):
            best = (at, marker)
    return best


def held_length(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that may still grow into a marker.

    That much has to be held back until more text decides.
    """
    longest = min(max((len(marker) for marker in markers), default=0) - 1, len(text))
    for length in range(longest, 0, -1):
        tail = text[len(text) - length :]
        if any(marker.startswith(tail) and marker != tail for marker in markers):
            return length
    return 0
