"""Which tokens stand behind a piece of text: their log probabilities go where their text went."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcel_trio.core.parsing.pieces import Piece
    from mlxcel_trio.protocol.responses import TokenLogprob


class TokenTrack:
    """Tokens by their place in the model's output.

    A token belongs to the piece in which its text begins; one without text of its own, the first bytes of
    a character, to the piece with the text that follows. Tokens of markers, of layout and of cut stop strings
    belong to none.
    """

    def __init__(self) -> None:
        self._end = 0
        self._tokens: deque[tuple[int, int, TokenLogprob]] = deque()

    def add(self, text: str, logprob: TokenLogprob) -> None:
        """The next token gave ``text``."""
        start, self._end = self._end, self._end + len(text)
        self._tokens.append((start, self._end, logprob))

    def take(self, piece: Piece) -> tuple[TokenLogprob, ...]:
        """The tokens of ``piece``; pieces are asked for in their order, and each token is given once."""
        taken: list[TokenLogprob] = []
        while self._tokens and self._tokens[0][0] < piece.end:
            start, end, logprob = self._tokens.popleft()
            if end > piece.start or start >= piece.start:
                taken.append(logprob)
        return tuple(taken)
