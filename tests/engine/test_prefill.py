from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.engine.prefill import Chunk, PrefillSchedule


def schedule(chunk_tokens: int, *tokens: int) -> PrefillSchedule:
    """Rows 0, 1, 2... with so many tokens."""
    result = PrefillSchedule(chunk_tokens)
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


def test_short_prompts_share_a_unit_of_eight_chunks_padding_included() -> None:
    assert units(schedule(10, 2, 3, 10, *[8] * 6)) == [
        [(0, 2), (1, 3), (2, 10), (3, 8), (4, 8), (5, 8), (6, 8), (7, 8)],
        [(8, 8)],
    ]


def test_a_prompt_too_long_to_join_keeps_later_ones_behind_it() -> None:
    assert units(schedule(100, 10, 110, 20)) == [[(0, 10)], [(1, 100)], [(1, 10), (2, 20)]]


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
    chunk_tokens=st.integers(1, 20),
    arrivals=st.lists(st.lists(st.integers(1, 50), max_size=3), max_size=12),
)
def test_every_row_gets_its_tokens_in_bounded_units_and_begins_in_turn(
    chunk_tokens: int, arrivals: list[list[int]]
) -> None:
    prefills = PrefillSchedule(chunk_tokens)
    wanted: dict[int, int] = {}
    got: dict[int, int] = {}
    ended: set[int] = set()

    def take() -> bool:
        unit = prefills.next_unit()
        if not unit:
            return False
        widest = max(chunk.tokens for chunk in unit)
        assert widest <= chunk_tokens
        assert len(unit) * widest <= chunk_tokens * 8
        assert all(chunk.last for chunk in unit) or len(unit) == 1
        assert unit[0].last or widest == chunk_tokens
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
