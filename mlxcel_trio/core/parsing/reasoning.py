"""Telling reasoning from the answer by its markers, such as ``<think>`` and ``</think>``.

A block may also be open from the start, when the rendered prompt ends in the opening marker. Whitespace
around a block is layout of the model's format, not content: it is dropped at both ends of the block, before
a block that opens the output, and between a block and the answer. Markers themselves never leak.
"""

from __future__ import annotations

from mlxcel_trio.core.parsing.markers import find_first, held_length
from mlxcel_trio.core.parsing.pieces import Piece


class ReasoningParser:
    """Splits text into reasoning and answer, with the same result however the text was cut."""

    def __init__(self, markers: tuple[str, str], *, opened: bool) -> None:
        self._markers = markers
        self._held = ""
        self._start = 0  # where the held text stands in the output
        self.inside = opened
        self._begun = False  # some text of the current stretch has been passed on
        self._after_marker = opened

    def feed(self, text: str) -> list[Piece]:
        """Pieces that no later text can change."""
        self._held += text
        pieces: list[Piece] = []
        while (found := find_first(self._held, self._markers)) is not None:
            at, marker = found
            self._pass_on(self._without_layout(self._held[:at]), pieces)
            self._drop(at + len(marker))
            self.inside = marker == self._markers[0]
            self._begun = False
            self._after_marker = True
        open_end = held_length(self._held, self._markers)
        certain = self._without_layout(self._held[: len(self._held) - open_end])
        self._pass_on(certain, pieces)
        self._drop(len(certain))
        return pieces

    def finish(self) -> list[Piece]:
        """The rest; the output has ended."""
        pieces: list[Piece] = []
        self._pass_on(self._held.rstrip() if self.inside else self._held, pieces)
        self._drop(len(self._held))
        return pieces

    def _without_layout(self, text: str) -> str:
        # Whitespace that ends reasoning or begins an answer is layout if a marker follows.
        if self.inside:
            return text.rstrip()
        return text if self._begun or not text.isspace() else ""

    def _pass_on(self, text: str, pieces: list[Piece]) -> None:
        """Pass on ``text``, which the held text begins with."""
        layout = len(text) - len(text.lstrip()) if self._after_marker and not self._begun else 0
        if layout == len(text):
            return
        self._begun = True
        pieces.append(Piece(text[layout:], self._start + layout, self.inside))

    def _drop(self, length: int) -> None:
        self._held = self._held[length:]
        self._start += length
