"""What can happen to jobs, and how hypothesis draws it."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from support.job_bench import EPHEMERAL_TTL
from support.job_model import Bounds

TTL = 100


class Create(NamedTuple):
    """A request; ``which`` chooses the response that it continues."""

    background: bool
    stream: bool
    store: bool
    link: str | None
    which: int
    renderable: bool


class Burst(NamedTuple):
    """Jobs that are created in one tick."""

    jobs: int


class Poll(NamedTuple):
    which: int


class Delete(NamedTuple):
    which: int


class Cancel(NamedTuple):
    """``racing``: the engine's last token came just before, and that many steps of the scheduler ago."""

    which: int
    racing: int | None


class Leave(NamedTuple):
    """The client of a foreground response goes away."""

    which: int


class Generate(NamedTuple):
    """The engine does something for one row."""

    which: int
    event: str


class Die(NamedTuple):
    """The engine stops or hangs; unless it is for good, it goes on when all have heard of it."""

    for_good: bool


class Wait(NamedTuple):
    seconds: int


Operation = Create | Burst | Poll | Delete | Cancel | Leave | Generate | Die | Wait

MOST = 12
WHICH = st.integers(0, MOST)
EVENTS = ["prefill"] * 3 + ["token"] * 4 + ["stop"] * 4 + ["length", "fail", "huge"]
SECONDS = [1, 1, int(EPHEMERAL_TTL) - 1, int(EPHEMERAL_TTL), TTL - 1, TTL]
CREATES = st.builds(
    Create,
    background=st.sampled_from([True, True, False]),
    stream=st.booleans(),
    store=st.sampled_from([True, True, False]),
    link=st.sampled_from([None, "chain", "conversation"]),
    which=WHICH,
    renderable=st.sampled_from([True] * 7 + [False]),
)
GENERATES = st.builds(Generate, WHICH, st.sampled_from(EVENTS))
CANCELS = st.builds(Cancel, WHICH, st.sampled_from([None, None, 0, 1, 2, 3, 4, 5]))
OPERATIONS: list[st.SearchStrategy[Operation]] = [
    *[CREATES] * 6,
    *[GENERATES] * 9,
    *[CANCELS] * 2,
    *[st.builds(Poll, WHICH)] * 3,
    st.builds(Delete, WHICH),
    st.builds(Leave, WHICH),
    st.builds(Burst, st.integers(2, 4)),
    st.builds(Wait, st.sampled_from(SECONDS)),
    st.builds(Die, st.sampled_from([False] * 5 + [True])),
]
"""What is drawn more often stands there more often; ``st.one_of`` would not count."""

BOUNDS = st.builds(
    Bounds,
    slots=st.integers(1, 3),
    depth=st.integers(0, 4),
    max_jobs=st.integers(1, 6),
    max_entries=st.sampled_from([1, 3, 100]),
    ttl_seconds=st.sampled_from([0, TTL]),
    small=st.booleans(),
)


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    """Many of them: ``st.lists`` makes short ones."""
    return [draw(draw(st.sampled_from(OPERATIONS))) for _ in range(draw(st.integers(1, 40)))]
