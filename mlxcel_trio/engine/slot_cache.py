"""A KV cache for several sequences that come and go without the others being copied.

mlx-lm's batch cache is exactly as large as its rows, so each one that joins or leaves has all keys and values
copied: at long contexts that stalls everybody, and takes twice the memory meanwhile. This one has slots:
the first of them are the rows, in order, and the others are free. Joining writes into a free slot, and
leaving moves a row from the end into the hole. All is copied only when there is no free slot, when the room
for tokens ends, and when a row joins that is longer than all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_lm.models.cache import KVCache

_GRANULE = 256
"""Room for tokens comes in multiples of this, and some more."""

_SPARE_COLUMNS = 1024
"""When slots are added, free ones beyond those needed hold no more tokens than this together."""


class SlotCache(BatchKVCache):
    """One layer's keys and values of several sequences, for one more token each at a time.

    ``keys`` and ``values`` are ``[slots, heads, room, dimension]``, or ``None`` before the first token. Every
    row's last token is at column ``_idx - 1``, hence shorter rows have padding on their left:
    ``left_padding [rows]``, and the same in ``_padding``, which needs no waiting for. ``offset [rows]`` are
    the rows' lengths. Layers with different ``spare_room`` run out of it, and are copied, in different steps.
    """

    keys: Any
    values: Any

    def __init__(self, spare_room: int = 0) -> None:
        super().__init__([])
        self._spare_room = spare_room
        self._padding: list[int] = []

    def join(self, caches: Sequence[KVCache]) -> None:
        """Let the sequences of these caches join, behind the others; empty ones too."""
        lengths = [cache.size() for cache in caches]
        rows, joined, longest = len(self._padding), len(self._padding) + len(lengths), max(lengths)
        shift = max(longest - self._idx, 0)
        slots, room = self._extent()
        if shift:
            room = self._room(longest + 1)
        if joined > slots:
            slots = joined + min(rows, _SPARE_COLUMNS // max(room, 1))
        self._reshape(slots, room, shift)
        self._padding = self._padding + [self._idx - length for length in lengths]
        self._count_rows()
        for slot, cache in enumerate(caches, start=rows):
            if cache.size():
                self._write(slot, *cache.keys_and_values())

    def make_mask(self, N: int, return_array: bool = False, **options: Any) -> Any:  # noqa: N803
        """Which columns the rows' next tokens see: ``None`` for all, when there is no padding."""
        if N == 1 and not (return_array or options.get("window_size") or any(self._padding)):
            return None
        return super().make_mask(N, return_array, **options)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add what each row's next token gives; returns all keys and values of the rows."""
        rows, begin = keys.shape[0], self._idx
        end = begin + keys.shape[2]
        self._allocate(keys, values)
        if end > self.keys.shape[2]:
            self._reshape(self.keys.shape[0], self._room(end + end // 4))
        self.keys[:rows, :, begin:end] = keys
        self.values[:rows, :, begin:end] = values
        self._idx = end
        self.offset = self.offset + keys.shape[2]
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def filter(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in this order. Waits for the rows that change their places."""
        moved = [(slot, row) for slot, row in enumerate(rows) if slot != row]
        if moved and self.keys is not None:
            sources = mx.array([row for _, row in moved])
            copies = [self.keys[sources], self.values[sources]]
            mx.eval(copies)  # or else writing would copy everything
            for index, (slot, _) in enumerate(moved):
                self.keys[slot : slot + 1] = copies[0][index : index + 1]
                self.values[slot : slot + 1] = copies[1][index : index + 1]
        self._padding = [self._padding[row] for row in rows]
        slots, room = self._extent()
        wasted = min(self._padding) if min(self._padding) >= _GRANULE else 0
        if wasted:
            room = self._room(self._idx - wasted + 1)
        self._reshape(2 * len(rows) if 4 * len(rows) <= slots else slots, room, -wasted)
        self._count_rows()

    def _extent(self) -> tuple[int, int]:
        """Slots and room."""
        return (0, 0) if self.keys is None else (self.keys.shape[0], self.keys.shape[2])

    def _room(self, tokens: int) -> int:
        return -(-tokens // _GRANULE) * _GRANULE + self._spare_room

    def _count_rows(self) -> None:
        self.left_padding = mx.array(self._padding)
        self.offset = self._idx - self.left_padding

    def _allocate(self, keys: mx.array, values: mx.array) -> None:
        """Have slots for all rows, for keys and values like these."""
        if self.keys is None:
            self.keys, self.values = (
                mx.zeros(
                    (len(self._padding), like.shape[1], self._room(self._idx + 1), like.shape[3]),
                    dtype=like.dtype,
                )
                for like in (keys, values)
            )

    def _write(self, slot: int, keys: mx.array, values: mx.array) -> None:
        self._allocate(keys, values)
        columns = slice(self._idx - keys.shape[2], self._idx)
        self.keys[slot : slot + 1, :, columns] = keys
        self.values[slot : slot + 1, :, columns] = values

    def _reshape(self, slots: int, room: int, shift: int = 0) -> None:
        """Have so many slots and so much room; move all rows to the right or, over padding, to the left."""
        if self.keys is not None and (shift or (slots, room) != self._extent()):
            kept, at = slice(max(-shift, 0), self._idx), max(shift, 0)
            self.keys = _resized(self.keys, slots, room, columns=kept, at=at)
            self.values = _resized(self.values, slots, room, columns=kept, at=at)
        self._idx += shift
        self._padding = [padding + shift for padding in self._padding]


def _resized(array: mx.array, slots: int, room: int, *, columns: slice, at: int) -> mx.array:
    """A copy with so many slots and so much room, whose column ``at`` is the first of ``columns``."""
    kept = array[:slots, :, columns]
    result = mx.zeros((slots, array.shape[1], room, array.shape[3]), dtype=array.dtype)
    result[: kept.shape[0], :, at : at + kept.shape[2]] = kept
    return result
