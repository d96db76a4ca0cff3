"""The order in which prompts are prefilled while other rows decode.

Prefill is cut into units of a bounded number of tokens, and the engine does one unit between two decode
steps. A unit is a chunk of one long prompt, or the rest of several short ones, which are padded to the
longest of them and cheaper together than one by one.

Rows begin in the order in which they came. Every other unit belongs to the oldest row, so that a long
prompt goes on at half speed at least. The units between let the next row begin and then favour the row
with the least left, so that a short prompt never waits for the whole of a long one.

Prompts that wait while no row decodes come together and are answered together: more of them may share a
unit, also once the first of them decode. Rows that decoded before them are not held up, for there were none.

A token attends to all before it, so the deeper in its prompt a chunk lies the longer it takes. While rows
decode, chunks get shorter with depth, so that the pauses between two tokens of those rows stay alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_BURST_FACTOR = 8
"""Units of a burst: as many chunks together. Sixteen short prompts are one unit on a CPU."""

_DOUBLE_COST_DEPTH = 8
"""How deep in its prompt, in chunks, a token costs twice as much as the first; on a CPU about so."""


class Chunk(NamedTuple):
    """``tokens`` more prompt tokens of a row; ``last`` when none remain after them."""

    row_id: int
    tokens: int
    last: bool


@dataclass(slots=True)
class _Prompt:
    row_id: int
    left: int
    fed: int = 0
    begun: bool = False
    in_burst: bool = False


class PrefillSchedule:
    """Decides which prompt tokens are next.

    ``unit_tokens`` bounds a chunk, and a unit with its padding. A unit of several prompts that waited while
    nobody decoded may have eight times as many.
    """

    def __init__(self, unit_tokens: int) -> None:
        self._unit_tokens = unit_tokens
        self._prompts: dict[int, _Prompt] = {}
        self._is_turn_of_oldest = True

    def add(self, row_id: int, tokens: int) -> None:
        """Queue a row with ``tokens`` >= 1 to prefill."""
        self._prompts[row_id] = _Prompt(row_id, tokens)

    def discard(self, row_id: int) -> None:
        """Forget a row; unknown ids are ignored."""
        self._prompts.pop(row_id, None)

    def next_unit(self, *, idle: bool = False) -> list[Chunk]:
        """The chunks to process together now; empty when nothing waits. ``idle``: no row decodes.

        Either one chunk that is not its row's last, or last chunks only. Rows with a last chunk are
        forgotten.
        """
        if not self._prompts:
            return []
        if idle:
            for prompt in self._prompts.values():
                prompt.in_burst = True
        leader = self._leader()
        leader.begun = True
        chunk_tokens = self._unit_tokens if idle else self._chunk_tokens_at(leader.fed)
        if leader.left > chunk_tokens:
            leader.left -= chunk_tokens
            leader.fed += chunk_tokens
            return [Chunk(leader.row_id, chunk_tokens, last=False)]
        unit = [leader, *self._companions(leader)]
        for prompt in unit:
            del self._prompts[prompt.row_id]
        return [Chunk(prompt.row_id, prompt.left, last=True) for prompt in unit]

    def _chunk_tokens_at(self, depth: int) -> int:
        """Tokens that cost about what a whole chunk at the start costs; half of one at least.

        Shorter ones would spend more time on reading the weights than on tokens.
        """
        double_at = self._unit_tokens * _DOUBLE_COST_DEPTH
        return max(self._unit_tokens * double_at // (double_at + depth), -(-self._unit_tokens // 2))

    def _leader(self) -> _Prompt:
        prompts = list(self._prompts.values())
        oldest_leads = self._is_turn_of_oldest
        self._is_turn_of_oldest = not oldest_leads
        if oldest_leads:
            return prompts[0]
        waiting = next((prompt for prompt in prompts if not prompt.begun), None)
        return waiting or min(prompts, key=lambda prompt: prompt.left)

    def _companions(self, leader: _Prompt) -> list[_Prompt]:
        """Rows that finish their prompts together with ``leader``."""
        unit_tokens = self._unit_tokens * (_BURST_FACTOR if leader.in_burst else 1)
        companions: list[_Prompt] = []
        widest = leader.left
        for prompt in self._prompts.values():
            if prompt is leader or (leader.in_burst and not prompt.in_burst):
                continue
            width = max(widest, prompt.left)
            if width <= self._unit_tokens and width * (len(companions) + 2) <= unit_tokens:
                prompt.begun = True
                companions.append(prompt)
                widest = width
            elif not prompt.begun:
                break  # whoever came later begins later
        return companions
