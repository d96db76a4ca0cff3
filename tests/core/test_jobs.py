"""Places for unfinished jobs: how many, how much memory, and nothing left when they are given back."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_trio.core.jobs import ActiveJobs, JobPlace
from mlxcel_trio.core.store import ENTRY_OVERHEAD_BYTES
from mlxcel_trio.core.transcript import EMPTY, StoredItem, Transcript
from mlxcel_trio.errors import RateLimitError

PLENTY = 1_000_000
OBJECT = b'{"id":"resp_1"}'
OBJECT_BYTES = ENTRY_OVERHEAD_BYTES + sys.getsizeof(OBJECT)


def turn(text: str, after: Transcript = EMPTY) -> Transcript:
    """A dialogue with one more item."""
    return after.append([StoredItem(f"msg_{text}", text.encode())])


def assert_refused(jobs: ActiveJobs, transcript: Transcript, encoded: bytes = OBJECT) -> RateLimitError:
    """A job is refused, and that changes nothing."""
    before = (len(jobs), jobs.retained_bytes)
    with pytest.raises(RateLimitError) as refused:
        jobs.admit(transcript, encoded)
    assert refused.value.code == "rate_limit_exceeded"
    assert (len(jobs), jobs.retained_bytes) == before
    return refused.value


@pytest.mark.parametrize(
    ("max_jobs", "max_bytes", "enabled"), [(1, 1, True), (0, 1, False), (1, 0, False), (0, 0, False)]
)
def test_a_bound_of_zero_is_no_background_mode(max_jobs: int, max_bytes: int, enabled: bool) -> None:
    assert ActiveJobs(max_jobs, max_bytes).enabled is enabled


def test_a_job_costs_its_object_and_its_dialogue() -> None:
    jobs = ActiveJobs(1, PLENTY)
    transcript = turn("two", turn("one"))
    place = jobs.admit(transcript, OBJECT)
    assert (len(jobs), jobs.retained_bytes) == (1, OBJECT_BYTES + transcript.size_bytes)
    jobs.release(place)
    assert (len(jobs), jobs.retained_bytes) == (0, 0)


def test_all_places_are_taken() -> None:
    jobs = ActiveJobs(2, PLENTY)
    places = [jobs.admit(turn(text), OBJECT) for text in ("one", "two")]
    assert "2 background responses are unfinished" in assert_refused(jobs, turn("three")).message
    jobs.release(places[0])
    jobs.admit(turn("three"), OBJECT)
    assert_refused(jobs, turn("four"))


def test_the_memory_is_taken() -> None:
    transcript = turn("one")
    jobs = ActiveJobs(100, 2 * (OBJECT_BYTES + transcript.size_bytes))
    first = jobs.admit(transcript, OBJECT)
    assert_refused(jobs, turn("two"), OBJECT + b" ")
    jobs.admit(turn("two"), OBJECT)  # exactly what is left
    assert_refused(jobs, EMPTY)
    jobs.release(first)
    jobs.admit(turn("six"), OBJECT)


def test_a_job_that_would_never_fit_hears_so() -> None:
    jobs = ActiveJobs(2, 3000)
    place = jobs.admit(EMPTY, OBJECT)
    assert "Try again" in assert_refused(jobs, turn("x" * 800)).message
    jobs.release(place)
    jobs.release(jobs.admit(turn("x" * 800), OBJECT))
    assert "Shorten its history or input" in assert_refused(jobs, turn("x" * 3000)).message


def test_shared_history_costs_once_for_as_long_as_anybody_holds_it() -> None:
    history = turn("a history " * 100)
    branches = [turn(text, history) for text in ("one", "two")]
    own = [OBJECT_BYTES + branch.size_bytes - history.size_bytes for branch in branches]
    jobs = ActiveJobs(100, history.size_bytes + sum(own))
    first, second = (jobs.admit(branch, OBJECT) for branch in branches)
    assert jobs.retained_bytes == history.size_bytes + sum(own)
    jobs.release(first)
    assert jobs.retained_bytes == history.size_bytes + own[1]
    jobs.release(second)
    assert jobs.retained_bytes == 0


def test_a_refused_job_holds_no_part_of_a_history_that_others_share() -> None:
    history = turn("a history")
    jobs = ActiveJobs(100, OBJECT_BYTES + history.size_bytes + 1000)
    place = jobs.admit(history, OBJECT)
    assert_refused(jobs, turn("x" * 2000, history))
    jobs.release(place)
    assert jobs.retained_bytes == 0
    jobs.admit(history, OBJECT)


def test_a_place_is_given_back_once() -> None:
    jobs = ActiveJobs(2, PLENTY)
    transcript = turn("one")
    first, second = (jobs.admit(transcript, OBJECT) for _ in range(2))
    jobs.release(first)
    jobs.release(first)
    assert (len(jobs), jobs.retained_bytes) == (1, OBJECT_BYTES + transcript.size_bytes)
    jobs.release(second)
    assert (len(jobs), jobs.retained_bytes) == (0, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 400)), max_size=30))
def test_in_any_order_it_holds_what_its_jobs_need(steps: list[tuple[bool, int, int]]) -> None:
    """Every branch of one tree of dialogues counts each of its turns once; the bounds hold throughout."""
    max_jobs, max_bytes = 4, 6000
    jobs = ActiveJobs(max_jobs, max_bytes)
    tree, held = [EMPTY], list[tuple[JobPlace, int]]()
    for admit, choice, size in steps:
        if admit:
            tree.append(turn("x" * size, tree[choice % len(tree)]))
            needed = written_out([*(place.transcript for place, _ in held), tree[-1]])
            needed += sum(own for _, own in held) + OBJECT_BYTES
            if len(held) == max_jobs or needed > max_bytes:
                assert_refused(jobs, tree[-1])
            else:
                held.append((jobs.admit(tree[-1], OBJECT), OBJECT_BYTES))
        elif held:
            jobs.release(held.pop(choice % len(held))[0])
        transcripts = [place.transcript for place, _ in held]
        assert len(jobs) == len(held)
        assert jobs.retained_bytes == written_out(transcripts) + sum(own for _, own in held) <= max_bytes
    for place, _ in held:
        jobs.release(place)
    assert (len(jobs), jobs.retained_bytes) == (0, 0)


def written_out(transcripts: list[Transcript]) -> int:
    """The memory of all links of the transcripts, each counted once."""
    links = {link: link for transcript in transcripts for link in transcript.links()}
    return sum(link.size_bytes - (link.parent or EMPTY).size_bytes for link in links)
