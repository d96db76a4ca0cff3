"""Pieces: stretches of model text on their way through the parsers, with their place in the whole."""

from __future__ import annotations

from msgspec import Struct


class Piece(Struct, frozen=True, gc=False):
    """Text that stands at ``start`` characters into the model's output, reasoning or not."""

    text: str
    start: int
    reasoning: bool = False

    @property
    def end(self) -> int:
        """Where the text after it begins."""
        return self.start + len(self.text)

    def before(self, length: int) -> Piece:
        """Its first ``length`` characters."""
        return Piece(self.text[:length], self.start, self.reasoning)

    def after(self, length: int) -> Piece:
        """What follows them."""
        return Piece(self.text[length:], self.start + length, self.reasoning)
