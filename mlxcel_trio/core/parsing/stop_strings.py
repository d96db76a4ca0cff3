"""Stop strings: the answer ends right before the first one, wherever token boundaries fall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.core.parsing.markers import find_first, held_length

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopStrings:
    """Lets text through until a stop string appears in it.

    Text that could be the beginning of a stop string is held back until it is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """Text that is certain to stand before every stop string. Nothing once one has matched."""
        if self.matched:
            return ""
        text = self._held + text
        found = find_first(text, self._stops)
        if found is not None:
            self.matched = True
            self._held = ""
            return text[: found[0]]
        keep = len(text) - held_length(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What was held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held
