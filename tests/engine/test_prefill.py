from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.engine.prefill import Chunk, PrefillSchedule


def schedule(unit_tokens: int, *tokens: int) -> PrefillSchedule:
    """Rows 0, 1, 2... with so many tokens."""
    result = PrefillSchedule(unit_tokens)
    for row_id, count in enumerate(tokens):
        result.add(row_id, count)
    return result


def units(prefills: PrefillSchedule) -> list[list[tuple[int, int]]]:
    """All units to the end, as (row, tokens)."""
    result = []
    while unit := prefills.next_unit():
        result.append([(chunk.row_id, chunk.tokens) for chunk in unit])
    return result


def test_nothing_to_do() -> None:
    assert schedule(100).next_unit() == []


def test_a_long_prompt_is_cut_into_chunks() -> None:
    prefills = schedule(100, 230)
    assert prefills.next_unit() == [Chunk(0, 100, last=False)]
    assert prefills.next_unit() == [Chunk(0, 100, last=False)]
    assert prefills.next_unit() == [Chunk(0, 30, last=True)]
    assert prefills.next_unit() == []


def test_a_prompt_of_exactly_one_unit_is_one_chunk() -> None:
    assert schedule(100, 100).next_unit() == [Chunk(0, 100, last=True)]


def test_short_prompts_share_a_unit_padding_included() -> None:
    assert units(schedule(100, 20, 30, 25, 10)) == [[(0, 20), (1, 30), (2, 25)], [(3, 10)]]


def test_a_prompt_too_long_to_join_keeps_later_ones_behind_it() -> None:
    assert units(schedule(100, 10, 90, 10)) == [[(0, 10)], [(1, 90)], [(2, 10)]]


def test_while_nobody_decodes_more_short_prompts_share_a_unit_but_chunks_stay_small() -> None:
    prefills = schedule(100, 50, 70, 50, 60, 50, 40, 150)
    assert [chunk.row_id for chunk in prefills.next_unit(idle=True)] == [0, 1, 2, 3, 4]
    assert [chunk.row_id for chunk in prefills.next_unit(idle=True)] == [5]
    assert prefills.next_unit(idle=True) == [Chunk(6, 100, last=False)]


def test_a_burst_keeps_its_wide_units_once_its_first_rows_decode_and_later_rows_do_not_join() -> None:
    prefills = schedule(100, *[50] * 12)
    assert len(prefills.next_unit(idle=True)) == 8
    prefills.add(12, 50)
    assert [chunk.row_id for chunk in prefills.next_unit()] == [8, 9, 10, 11]
    assert [chunk.row_id for chunk in prefills.next_unit()] == [12]


def test_rows_that_come_while_others_decode_share_narrow_units() -> None:
    prefills = schedule(100, *[50] * 4)
    assert [len(prefills.next_unit()) for _ in range(2)] == [2, 2]


def test_equal_long_prompts_end_in_order_and_the_first_is_not_last() -> None:
    ends = [unit[0][0] for unit in units(schedule(100, 250, 250, 250)) if unit[0][1] == 50]
    assert ends == [0, 1, 2]


def test_a_short_prompt_does_not_wait_for_the_whole_of_a_long_one() -> None:
    prefills = schedule(100, 1000)
    prefills.next_unit()
    prefills.add(1, 40)
    assert [chunk.row_id for _ in range(2) for chunk in prefills.next_unit()].count(1) == 1


def test_a_long_prompt_goes_on_at_half_speed_while_short_ones_keep_coming() -> None:
    prefills = schedule(100, 1000)
    done = 0
    for row_id in range(1, 11):
        prefills.add(row_id, 60)
        done += sum(chunk.tokens for chunk in prefills.next_unit() if chunk.row_id == 0)
    assert done == 500


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
        assert len(unit) * widest <= unit_tokens * (4 if idle else 1)
        assert all(chunk.last for chunk in unit) or len(unit) == 1
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
