"""The parser of one response: reasoning first, then stop strings in the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.core.parsing.logprobs import TokenTrack
from mlxcel_trio.core.parsing.pieces import Piece
from mlxcel_trio.core.parsing.reasoning import ReasoningParser
from mlxcel_trio.core.parsing.segments import ReasoningDelta, Segment, TextDelta
from mlxcel_trio.core.parsing.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mlxcel_trio.protocol.responses import TokenLogprob


class OutputParser:
    """Text of the model in, segments out; never raises on anything a model may write.

    Stop strings end the answer; they are not looked for in reasoning, which the caller does not see as
    answer text.
    """

    def __init__(
        self, *, reasoning_markers: tuple[str, str] | None, reasoning_opened: bool, stops: Sequence[str]
    ) -> None:
        self._reasoning = (
            ReasoningParser(reasoning_markers, opened=reasoning_opened) if reasoning_markers else None
        )
        self._stops = StopStrings(stops)
        self._tokens = TokenTrack()
        self._length = 0

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends inside a reasoning block."""
        return self._reasoning is not None and self._reasoning.inside

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer; further text is ignored."""
        return self._stops.matched

    def feed(self, text: str, logprob: TokenLogprob | None = None) -> list[Segment]:
        """Take the text of one more token, with its log probability if the caller wants them.

        Returns the segments that no later text can change.
        """
        if logprob is not None:
            self._tokens.add(text, logprob)
        if self._reasoning is not None:
            pieces = self._reasoning.feed(text)
        else:
            pieces = [Piece(text, self._length)] if text else []
            self._length += len(text)
        return self._segments(self._until_stop(pieces))

    def finish(self) -> list[Segment]:
        """The rest, once the model has ended."""
        rest = self._reasoning.finish() if self._reasoning is not None else []
        return self._segments([*self._until_stop(rest), *self._stops.finish()])

    def _until_stop(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.reasoning:
                yield from self._stops.finish()  # a stop string does not span a block
                yield piece
            else:
                yield from self._stops.feed(piece)
            if self._stops.matched:
                return

    def _segments(self, pieces: Iterable[Piece]) -> list[Segment]:
        segments: list[Segment] = []
        for piece in pieces:
            logprobs = self._tokens.take(piece)
            segments.append(
                ReasoningDelta(piece.text) if piece.reasoning else TextDelta(piece.text, logprobs)
            )
        return segments
