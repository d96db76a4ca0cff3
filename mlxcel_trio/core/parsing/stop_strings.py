"""Stop strings: the answer ends right before the first one, wherever token boundaries fall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.core.parsing.markers import find_first, held_length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_trio.core.parsing.pieces import Piece


class StopStrings:
    """Lets text through until a stop string appears in it.

    Text that could be the beginning of a stop string is held back until it is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held: list[Piece] = []
        self.matched = False

    def feed(self, piece: Piece) -> list[Piece]:
        """Text that is certain to stand before every stop string. Nothing once one has matched."""
        if self.matched:
            return []
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        found = find_first(text, self._stops)
        if found is not None:
            self.matched = True
            return self._take(found[0])
        return self._take(len(text) - held_length(text, self._stops))

    def finish(self) -> list[Piece]:
        """What was held back, if no stop string came of it."""
        if self.matched:
            return []
        held, self._held = self._held, []
        return held

    def _take(self, length: int) -> list[Piece]:
        taken: list[Piece] = []
        while self._held and length:
            piece = self._held.pop(0)
            if length < len(piece.text):
                self._held.insert(0, piece.after(length))
                piece = piece.before(length)
            length -= len(piece.text)
            taken.append(piece)
        return taken
