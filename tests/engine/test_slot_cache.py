"""SlotCache against plain lists of rows."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from mlx_lm.models.cache import KVCache

from mlxcel_trio.engine.caches import share_offsets
from mlxcel_trio.engine.slot_cache import SlotCache

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]
    """``[heads, tokens, 5]``: keys of dimension 2, and then values of dimension 3."""

HEADS, KEY_SIZE, VALUE_SIZE = 2, 2, 3
GRANULE = 256
# None, around the room that comes in multiples of 256, and far apart.
LENGTHS = [0, 1, 3, 254, 255, 256, 257, 300, 600]


class Source:
    """Rows of numbers that are all different, none of them zero."""

    def __init__(self) -> None:
        self._starts = count(1, HEADS * (KEY_SIZE + VALUE_SIZE))

    def row(self, tokens: int) -> Numbers:
        width = KEY_SIZE + VALUE_SIZE
        columns = [
            np.arange(start, start + HEADS * width, dtype=np.float32).reshape(HEADS, 1, width)
            for start, _ in zip(self._starts, range(tokens), strict=False)
        ]
        return np.concatenate([np.zeros((HEADS, 0, width), np.float32), *columns], axis=1)


def keys_and_values(numbers: Numbers) -> tuple[mx.array, mx.array]:
    return mx.array(numbers[..., :KEY_SIZE]), mx.array(numbers[..., KEY_SIZE:])


def kv_cache(row: Numbers) -> KVCache:
    cache = KVCache()
    if row.shape[1]:
        cache.update_and_fetch(*keys_and_values(row[None]))
    return cache


def joined(rows: Sequence[Numbers], spare_room: int = 0) -> SlotCache:
    cache = SlotCache(spare_room)
    cache.join([kv_cache(row) for row in rows])
    return cache


def caches_of(*lengths: int) -> list[KVCache]:
    source = Source()
    return [kv_cache(source.row(length)) for length in lengths]


def cache_of(*lengths: int, spare_room: int = 0) -> SlotCache:
    cache = SlotCache(spare_room)
    cache.join(caches_of(*lengths))
    return cache


def numbers_in(keys: Any, values: Any) -> Numbers:
    return np.concatenate([np.array(keys), np.array(values)], axis=-1)


def append(cache: SlotCache, tokens: Sequence[Numbers]) -> Numbers:
    """Add a token to every row; what the model gets to see."""
    return numbers_in(*cache.update_and_fetch(*keys_and_values(np.stack(tokens))))


def order_without(rows: int, leaving: Collection[int]) -> list[int]:
    """Staying rows keep their places if they can, and those from the end fill the holes."""
    staying = [row for row in range(rows) if row not in leaving]
    from_end = [row for row in reversed(staying) if row >= len(staying)]
    return [from_end.pop(0) if place in leaving else place for place in range(len(staying))]


class RowsThatComeAndGo(RuleBasedStateMachine):
    """``rows`` is what the cache ought to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.source = Source()
        self.rows: list[Numbers] = []

    @initialize(
        lengths=st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=4), granules=st.integers(0, 2)
    )
    def begin(self, lengths: list[int], granules: int) -> None:
        self.rows = [self.source.row(length) for length in lengths]
        self.cache = joined(self.rows, spare_room=8 * granules)

    @rule(tokens=st.integers(1, 3))
    def append(self, tokens: int) -> None:
        for _ in range(tokens):
            new = [self.source.row(1) for _ in self.rows]
            self.rows = [np.concatenate(pair, axis=1) for pair in zip(self.rows, new, strict=True)]
            seen = append(self.cache, new)
            assert len(seen) == len(self.rows)
            for own, row in zip(seen, self.rows, strict=True):
                padding = own.shape[1] - row.shape[1]
                np.testing.assert_array_equal(own[:, padding:], row)

    @rule(lengths=st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=3))
    def join(self, lengths: list[int]) -> None:
        joining = [self.source.row(length) for length in lengths]
        self.cache.join([kv_cache(row) for row in joining])
        self.rows += joining

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        leaving = data.draw(st.sets(st.sampled_from(range(len(self.rows))), max_size=len(self.rows) - 1))
        self.go_on_with(order_without(len(self.rows), leaving))

    @rule(data=st.data())
    def pick(self, data: st.DataObject) -> None:
        shuffled = data.draw(st.permutations(range(len(self.rows))))
        self.go_on_with(shuffled[: data.draw(st.integers(1, len(shuffled)))])

    def go_on_with(self, order: list[int]) -> None:
        self.cache.filter(order)
        self.rows = [self.rows[row] for row in order]

    @invariant()
    def holds_the_rows(self) -> None:
        lengths = [row.shape[1] for row in self.rows]
        assert self.cache.offset.tolist() == lengths
        assert self.cache.left_padding.tolist() == [self.cache._idx - length for length in lengths]
        for index, row in enumerate(self.rows):
            if row.shape[1]:
                own: Any = self.cache.extract(index)  # type: ignore[no-untyped-call]
                np.testing.assert_array_equal(numbers_in(*own.keys_and_values())[0], row)


RowsThatComeAndGo.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
TestRowsThatComeAndGo = RowsThatComeAndGo.TestCase


def test_joiners_take_free_slots_and_bring_some_more_when_there_are_none() -> None:
    cache = cache_of(20, 30)
    slots = []
    for length in (10, 30, 20, 5):
        cache.join(caches_of(length))
        slots.append(cache.keys.shape[0])
    assert slots == [5, 5, 5, 10]
    assert {array.shape[:3] for array in (cache.keys, cache.values)} == {(10, HEADS, GRANULE)}
    cache.join(caches_of(*[1] * 20))
    assert cache.keys.shape[0] == 30


def test_slots_with_much_room_are_added_only_as_needed() -> None:
    cache = cache_of(20, 30)
    cache.join(caches_of(1500))
    assert cache.keys.shape[0] == 3


def large(rows: int) -> list[KVCache]:
    """A MiB of keys and one of values for each row."""
    shape = (1, 4, 1024, 64)
    caches = [KVCache() for _ in range(rows)]
    for cache in caches:
        cache.update_and_fetch(mx.ones(shape), mx.ones(shape))
    return caches


def test_a_row_joins_and_leaves_without_the_others_being_copied() -> None:
    cache = SlotCache()
    cache.join(large(17))
    cache.filter(range(16))
    joining = large(1)
    mx.eval(cache.state, joining[0].state)
    before = mx.get_active_memory()
    changes: list[Callable[[], None]] = [
        lambda: cache.join(joining),
        lambda: cache.filter([0, 16, *range(2, 16)]),
    ]
    for change in changes:
        mx.reset_peak_memory()
        change()
        mx.eval(cache.keys, cache.values)
        assert mx.get_peak_memory() - before < 4 * joining[0].nbytes < cache.nbytes / 4


def growing_steps(cache: SlotCache, steps: int) -> list[int]:
    """The steps in which the cache got more room."""
    source, grown = Source(), []
    for step in range(steps):
        room = cache.keys.shape[2]
        append(cache, [source.row(1) for _ in cache._padding])
        if cache.keys.shape[2] != room:
            grown.append(step)
    return grown


def test_layers_get_more_room_in_different_steps() -> None:
    grown = [growing_steps(cache_of(240, 3, spare_room=8 * layer), 60) for layer in range(5)]
    assert grown == [[16], [24], [32], [40], [48]]


def test_growing_takes_a_quarter_more_than_needed_and_so_happens_rarely() -> None:
    cache = cache_of(1023)
    assert growing_steps(cache, 2) == [1]
    assert cache.keys.shape[2] == 1280 + GRANULE


@pytest.mark.parametrize(("padding", "cut"), [(1, 0), (255, 0), (256, 256), (290, 290)])
def test_padding_of_a_granule_is_cut_off_when_the_longest_rows_leave(padding: int, cut: int) -> None:
    cache = cache_of(700, 700 - padding, 400 - padding)
    cache.filter([2, 1])
    assert cache.left_padding.tolist() == [300 + padding - cut, padding - cut]
    assert cache.offset.tolist() == [400 - padding, 700 - padding]
    assert append(cache, [Source().row(1)] * 2).shape[2] == 701 - cut
    assert cache.keys.shape[2] == (512 if cut > 200 else 768)


@pytest.mark.parametrize(("staying", "slots"), [(7, 8), (3, 8), (2, 4), (1, 2)])
def test_slots_are_given_back_when_few_rows_are_left(staying: int, slots: int) -> None:
    cache = cache_of(*range(1, 9))
    cache.filter(range(staying))
    assert cache.keys.shape[0] == cache.values.shape[0] == slots


def test_the_mask_hides_the_padding_and_nothing_else() -> None:
    cache = cache_of(3, 300)
    cache.join(caches_of(0, 310, 7))
    cache.filter([4, 1, 2])
    mask = cache.make_mask(1, return_array=True)
    assert mask.shape == (3, 1, 1, 311)
    hidden = [[False] * (310 - length) + [True] * (length + 1) for length in (7, 300, 0)]
    assert mask[:, 0, 0].tolist() == hidden


def test_there_is_no_mask_while_there_is_no_padding() -> None:
    cache = cache_of(300, 300)
    assert cache.make_mask(1) is None
    assert cache.make_mask(1, return_array=True).shape == (2, 1, 1, 301)
    assert cache.make_mask(1, window_size=10)[:, 0, 0].sum(axis=-1).tolist() == [10, 10]
    cache.join(caches_of(299))
    assert cache.make_mask(1)[:, 0, 0].sum(axis=-1).tolist() == [301, 301, 300]
    cache.filter([1])
    assert cache.make_mask(1) is None


def test_layers_share_an_array_of_lengths_that_never_changes() -> None:
    layers = [cache_of(3, 5) for _ in range(3)]
    offsets = share_offsets([layers[0], object(), *layers[1:]])
    assert offsets is not None
    assert all(layer.offset is offsets for layer in layers)
    for layer in layers:
        append(layer, [Source().row(1)] * 2)
    assert offsets.tolist() == [3, 5]
    assert [layer.offset.tolist() for layer in layers] == [[4, 6]] * 3
    layers[0].join(caches_of(2))
    layers[0].filter([2, 0])
    assert offsets.tolist() == [3, 5]


def test_layers_without_slots_share_nothing() -> None:
    assert share_offsets([KVCache()]) is None
