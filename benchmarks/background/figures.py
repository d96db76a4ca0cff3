"""From times to figures, and the tables made of them."""

from __future__ import annotations

from itertools import pairwise
from statistics import median, quantiles
from typing import TYPE_CHECKING

from msgspec import Struct

from benchmarks.report import Table

if TYPE_CHECKING:
    from collections.abc import Sequence


class Spread(Struct, frozen=True):
    """Times of ``count`` equal things, in milliseconds."""

    count: int
    p50: float
    p99: float
    largest: float


class Figures(Struct, frozen=True, kw_only=True):
    """One run.

    Latencies are from sending a request to the end of its answer. ``burst_create``: of all jobs, created at
    once; the other ``busy`` ones are taken while those are unfinished, ``busy_create`` and ``busy_cancel`` of
    one job more that is cancelled at once.

    ``gaps``: between two pieces of one stream's text, of all streams: while nothing else is asked; while
    requests like the jobs are answered in the foreground; from the first create to the end of the last job;
    and after that. ``seconds``: the span of the jobs. Token counts are theirs.
    """

    idle_create: Spread
    idle_poll: Spread
    burst_create: Spread
    busy_create: Spread
    busy_poll: Spread
    busy_cancel: Spread
    gaps_alone: Spread
    gaps_with_requests: Spread
    gaps_with_jobs: Spread
    gaps_alone_again: Spread
    seconds: float
    prompt_tokens: int
    output_tokens: int


def spread(seconds: Sequence[float]) -> Spread:
    """The figures of at least one time."""
    in_ms = [1000 * one for one in seconds]
    if len(in_ms) == 1:
        return Spread(1, *in_ms * 3)
    return Spread(len(in_ms), median(in_ms), quantiles(in_ms, n=100, method="inclusive")[98], max(in_ms))


def gaps(answers: Sequence[Sequence[float]], *, since: float, until: float) -> list[float]:
    """The seconds between two neighbouring arrivals of one answer that end between the two times."""
    return [
        later - earlier
        for arrivals in answers
        for earlier, later in pairwise(arrivals)
        if since <= later <= until
    ]


def tables(figures: Figures) -> list[Table]:
    """For people."""
    header = ("milliseconds", "count", "p50", "p99", "largest")
    latencies = {
        "create, idle": figures.idle_create,
        "create, all jobs at once beside the streams": figures.burst_create,
        "create one more, beside all": figures.busy_create,
        "poll, idle": figures.idle_poll,
        "poll, beside all": figures.busy_poll,
        "cancel, beside all": figures.busy_cancel,
    }
    pauses = {
        "streams alone": figures.gaps_alone,
        "with requests like the jobs": figures.gaps_with_requests,
        "with jobs": figures.gaps_with_jobs,
        "streams alone again": figures.gaps_alone_again,
    }
    jobs = ("first create to last end", f"{figures.seconds:.1f}", f"{figures.prompt_tokens}")
    return [
        Table("From request to whole answer", header, tuple(map(_row, latencies.items()))),
        Table("Between two pieces of a stream's text", header, tuple(map(_row, pauses.items()))),
        Table("All jobs", ("", "seconds", "prompt tokens", "tokens"), ((*jobs, f"{figures.output_tokens}"),)),
    ]


def _row(named: tuple[str, Spread]) -> tuple[str, ...]:
    name, one = named
    return (name, f"{one.count}", f"{one.p50:.1f}", f"{one.p99:.1f}", f"{one.largest:.1f}")
