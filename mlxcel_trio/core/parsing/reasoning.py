"""Telling reasoning from the answer by its markers, such as ``<think>`` and ``</think>``.

A block may also be open from the start, when the rendered prompt ends in the opening marker. Whitespace
around a block is layout of the model's format, not content: it is dropped at both ends of the block, before
a block that opens the output, and between a block and the answer. Markers themselves never leak.
"""

from __future__ import annotations

from mlxcel_trio.core.parsing.markers import find_first, held_length
from mlxcel_trio.core.parsing.segments import ReasoningDelta, Segment, TextDelta


class ReasoningParser:
    """Splits text into reasoning and answer, with the same result however the text was cut."""

    def __init__(self, markers: tuple[str, str], *, opened: bool) -> None:
        self._markers = markers
        self._held = ""
        self.inside = opened
        self._begun = False  # some text of the current stretch has been passed on
        self._after_marker = opened

    def feed(self, text: str) -> list[Segment]:
        """Segments that no later text can change."""
        text = self._held + text
        segments: list[Segment] = []
        while (found := find_first(text, self._markers)) is not None:
            at, marker = found
            self._pass_on(self._without_layout(text[:at]), segments)
            self.inside = marker == self._markers[0]
            self._begun = False
            self._after_marker = True
            text = text[at + len(marker) :]
        certain = self._without_layout(text[: len(text) - held_length(text, self._markers)])
        self._held = text[len(certain) :]
        self._pass_on(certain, segments)
        return segments

    def finish(self) -> list[Segment]:
        """The rest; the output has ended."""
        segments: list[Segment] = []
        rest, self._held = self._held, ""
        self._pass_on(rest.rstrip() if self.inside else rest, segments)
        return segments

    def _without_layout(self, text: str) -> str:
        # Whitespace that ends reasoning or begins an answer is layout if a marker follows.
        if self.inside:
            return text.rstrip()
        return text if self._begun or not text.isspace() else ""

    def _pass_on(self, text: str, segments: list[Segment]) -> None:
        if self._after_marker and not self._begun:
            text = text.lstrip()
        if not text:
            return
        self._begun = True
        segments.append(ReasoningDelta(text) if self.inside else TextDelta(text))
