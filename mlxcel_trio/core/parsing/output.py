"""The parser of one response: reasoning first, then stop strings in the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.core.parsing.reasoning import ReasoningParser
from mlxcel_trio.core.parsing.segments import Segment, TextDelta
from mlxcel_trio.core.parsing.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
        self._stops = StopStrings(stops) if stops else None

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends inside a reasoning block."""
        return self._reasoning is not None and self._reasoning.inside

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer; further text is ignored."""
        return self._stops is not None and self._stops.matched

    def feed(self, text: str) -> list[Segment]:
        """Segments that no later text can change."""
        if self._reasoning is not None:
            return list(self._until_stop(self._reasoning.feed(text)))
        return list(self._until_stop([TextDelta(text)] if text else []))

    def finish(self) -> list[Segment]:
        """The rest, once the model has ended."""
        segments = list(self._until_stop(self._reasoning.finish() if self._reasoning else []))
        if self._stops is not None and (held := self._stops.finish()):
            segments.append(TextDelta(held))
        return segments

    def _until_stop(self, segments: Iterable[Segment]) -> Iterable[Segment]:
        if self._stops is None:
            yield from segments
            return
        for segment in segments:
            if not isinstance(segment, TextDelta):
                if held := self._stops.finish():
                    yield TextDelta(held)
                yield segment
            elif text := self._stops.feed(segment.text):
                yield TextDelta(text)
            if self._stops.matched:
                return
