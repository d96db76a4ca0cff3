"""The order in which prompts are prefilled.

Prefill is cut into units of a bounded number of tokens. A unit is a chunk of one long prompt, or the rest of
several short ones, which are padded to the longest of them and much cheaper together than one by one.

Rows begin in the order in which they came. Every other unit belongs to the oldest row, so that a long
prompt goes on at half speed at least. The units between let the next row begin and then favour the row
with the least left, so that a short prompt never waits for the whole of a long one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_CHUNKS_TOGETHER = 8
"""How many chunks a unit of short prompts may have. Sixteen short prompts are one unit on a CPU."""


class Chunk(NamedTuple):
    """``tokens`` more prompt tokens of a row; ``last`` when none remain after them."""

    row_id: int
    tokens: int
    last: bool


@dataclass(slots=True)
class _Prompt:
    row_id: int
    left: int
    begun: bool = False


class PrefillSchedule:
    """Decides which prompt tokens are next.

    ``chunk_tokens`` bounds a chunk. A unit of several prompts may have eight times as many, with its padding.
    """

    def __init__(self, chunk_tokens: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._prompts: dict[int, _Prompt] = {}
        self._is_turn_of_oldest = True

    def add(self, row_id: int, tokens: int) -> None:
        """Queue a row with ``tokens`` >= 1 to prefill."""
        self._prompts[row_id] = _Prompt(row_id, tokens)

    def discard(self, row_id: int) -> None:
        """Forget a row; unknown ids are ignored."""
        self._prompts.pop(row_id, None)

    def next_unit(self) -> list[Chunk]:
        """The chunks to process together next; empty when nothing waits.

        Either one chunk that is not its row's last, or last chunks only. Rows with a last chunk are
        forgotten.
        """
        if not self._prompts:
            return []
        leader = self._leader()
        leader.begun = True
        if leader.left > self._chunk_tokens:
            leader.left -= self._chunk_tokens
            return [Chunk(leader.row_id, self._chunk_tokens, last=False)]
        unit = [leader, *self._companions(leader)]
        for prompt in unit:
            del self._prompts[prompt.row_id]
        return [Chunk(prompt.row_id, prompt.left, last=True) for prompt in unit]

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
        companions: list[_Prompt] = []
        widest = leader.left
        for prompt in self._prompts.values():
            if prompt is leader:
                continue
            width = max(widest, prompt.left)
            rows = len(companions) + 2
            if width <= self._chunk_tokens and width * rows <= self._chunk_tokens * _CHUNKS_TOGETHER:
                prompt.begun = True
                companions.append(prompt)
                widest = width
            elif not prompt.begun:
                break  # whoever came later begins later
        return companions
