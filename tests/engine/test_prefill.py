from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.engine.prefill import Chunk, PrefillSchedule


def schedule(unit_tokens: int, *tokens: int) -> PrefillSchedule:
    """Rows 0, 1, 2... with so many tokens."""
    result = PrefillSchedule(unit_tokens)
    for row_id, count in enumerate(tokens):
        result.add(row_id, count)
    return result


def units(prefills: PrefillSchedule, *, idle: bool = False) -> list[list[tuple[int, int]]]:
    """All units to the end, as (row, tokens)."""
    result = []
    while unit := prefills.next_unit(idle=idle):
        result.append([(chunk.row_id, chunk.tokens) for chunk in unit])
    return result


def chunk_sizes(prefills: PrefillSchedule, *, idle: bool = False) -> list[int]:
    """Of the one row that there is."""
    return [tokens for ((_, tokens),) in units(prefills, idle=idle)]


def test_nothing_to_do() -> None:
    assert schedule(100).next_unit() == []


def test_a_long_prompt_is_cut_into_chunks() -> None:
    prefills = schedule(100, 230)
    assert prefills.next_unit(idle=True) == [Chunk(0, 100, last=False)]
    assert prefills.next_unit(idle=True) == [Chunk(0, 100, last=False)]
    assert prefills.next_unit(idle=True) == [Chunk(0, 30, last=True)]
    assert prefills.next_unit(idle=True) == []


def test_while_nobody_decodes_chunks_are_whole_at_any_depth() -> None:
    assert chunk_sizes(schedule(128, 4000), idle=True) == [128] * 31 + [32]


@pytest.mark.parametrize("unit_tokens", [1, 2, 3, 16, 100, 127, 128, 512])
def test_while_rows_decode_chunks_get_shorter_with_depth_down_to_half(unit_tokens: int) -> None:
    prompt = unit_tokens * 40
    *sizes, rest = chunk_sizes(schedule(unit_tokens, prompt))
    half = (unit_tokens + 1) // 2
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (unit_tokens, half)
    assert 0 < rest <= half
    assert sum(sizes) + rest == prompt


def test_a_chunk_costs_about_what_the_first_costs_until_it_is_half_as_long() -> None:
    """A token costs twice as much eight chunks deep."""
    depth = 0
    for size in chunk_sizes(schedule(128, 128 * 8)):
        assert size * (1 + depth / (8 * 128)) <= 128
        depth += size


def test_depth_counts_what_was_fed_while_nobody_decoded() -> None:
    prefills = schedule(100, 2000)
    for _ in range(8):
        prefills.next_unit(idle=True)
    assert prefills.next_unit() == [Chunk(0, 50, last=False)]
    assert prefills.next_unit(idle=True) == [Chunk(0, 100, last=False)]


def test_each_prompt_has_a_depth_of_its_own() -> None:
    prefills = schedule(100, 2000)
    for _ in range(8):
        prefills.next_unit(idle=True)
    prefills.add(1, 2000)
    sizes = {chunk.row_id: chunk.tokens for _ in range(2) for chunk in prefills.next_unit()}
    assert sizes == {0: 50, 1: 100}


def test_a_prompt_of_exactly_one_unit_is_one_chunk() -> None:
    assert schedule(100, 100).next_unit() == [Chunk(0, 100, last=True)]


def test_short_prompts_share_a_unit_padding_included() -> None:
    assert units(schedule(100, 20, 30, 25, 10)) == [[(0, 20), (1, 30), (2, 25)], [(3, 10)]]


def test_a_prompt_too_long_to_join_keeps_later_ones_behind_it() -> None:
    assert units(schedule(100, 10, 90, 10)) == [[(0, 10)], [(1, 90)], [(2, 10)]]


def test_while_nobody_decodes_more_short_prompts_share_a_unit_but_chunks_stay_small() -> None:
    prefills = schedule(100, *[50] * 5, 80, *[50] * 5, 150)
    assert [chunk.row_id for chunk in prefills.next_unit(idle=True)] == list(range(10))
    assert [chunk.row_id for chunk in prefills.next_unit(idle=True)] == [10]
    assert prefills.next_unit(idle=True) == [Chunk(11, 100, last=False)]


def test_a_burst_keeps_its_wide_units_once_its_first_rows_decode_and_later_rows_do_not_join() -> None:
    prefills = schedule(100, *[50] * 20)
    assert len(prefills.next_unit(idle=True)) == 16
    prefills.add(20, 50)
    assert [chunk.row_id for chunk in prefills.next_unit()] == [16, 17, 18, 19]
    assert [chunk.row_id for chunk in prefills.next_unit()] == [20]


def test_rows_that_come_while_others_decode_share_narrow_units() -> None:
    prefills = schedule(100, *[50] * 4)
    assert [len(prefills.next_unit()) for _ in range(2)] == [2, 2]


def test_equal_long_prompts_end_in_order_and_the_first_is_not_last() -> None:
    prefills = schedule(100, 250, 250, 250)
    ends = []
    while unit := prefills.next_unit():
        ends += [chunk.row_id for chunk in unit if chunk.last]
    assert ends == [0, 1, 2]


def test_a_short_prompt_does_not_wait_for_the_whole_of_a_long_one() -> None:
    prefills = schedule(100, 1000)
    prefills.next_unit()
    prefills.add(1, 40)
    assert [chunk.row_id for _ in range(2) for chunk in prefills.next_unit()].count(1) == 1


def test_a_long_prompt_goes_on_at_half_speed_while_short_ones_keep_coming() -> None:
    prefills = schedule(100, 1000)
    turns = 0
    for row_id in range(1, 11):
        prefills.add(row_id, 60)
        turns += [chunk.row_id for chunk in prefills.next_unit()].count(0)
    assert turns == 5


def test_a_discarded_row_is_forgotten() -> None:
    prefills = schedule(100, 250, 30)
    prefills.next_unit()
    prefills.discard(0)
    prefills.discard(0)
    assert units(prefills) == [[(1, 30)]]


@given(
    unit_tokens=st.integers(1, 20),
    arrivals=st.lists(st.lists(st.integers(1, 50), max_size=3), max_size=12),
    idle=st.booleans(),
)
def test_every_row_gets_its_tokens_in_bounded_units_and_begins_in_turn(
    unit_tokens: int, arrivals: list[list[int]], idle: bool
) -> None:
    prefills = PrefillSchedule(unit_tokens)
    wanted: dict[int, int] = {}
    got: dict[int, int] = {}
    ended: set[int] = set()

    def take() -> bool:
        unit = prefills.next_unit(idle=idle)
        if not unit:
            return False
        widest = max(chunk.tokens for chunk in unit)
        assert widest <= unit_tokens
        assert len(unit) * widest <= unit_tokens * (8 if idle else 1)
        assert all(chunk.last for chunk in unit) or len(unit) == 1
        assert unit[0].last or widest >= (unit_tokens if idle else unit_tokens / 2)
        for chunk in unit:
            assert chunk.row_id not in ended
            got[chunk.row_id] = got.get(chunk.row_id, 0) + chunk.tokens
            if chunk.last:
                ended.add(chunk.row_id)
        return True

    for tokens in arrivals:
        for count in tokens:
            row_id = len(wanted)
            wanted[row_id] = count
            prefills.add(row_id, count)
        take()
    while take():
        pass
    assert got == wanted
    assert ended == set(wanted)
    assert list(got) == sorted(got), "begun out of turn"
