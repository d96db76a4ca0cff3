"""Medians over the rounds, and the tables made of them."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct

from benchmarks.report import Table
from benchmarks.serving.measurement import Measurement
from benchmarks.serving.systems import IN_PROCESS, OURS
from benchmarks.serving.workload import streams_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NO_VALUE = "–"


class Result(Struct, frozen=True):
    """One workload on one system in one round."""

    round: int
    workload: str
    system: str
    measurement: Measurement


class Summary(Struct, frozen=True, kw_only=True):
    """A system's medians over the rounds of one workload; see :class:`Measurement` for units.

    ``of_in_process``: the median over the rounds of the ratio of tokens per second to those in process;
    ``ttft_of_one``: of ``ttft_median`` to the system's own with one stream.
    """

    workload: str
    system: str
    tokens_per_second: float
    slowest: float
    fastest: float
    of_in_process: float | None
    seconds: float
    ttft_median: float
    ttft_max: float
    ttft_of_one: float | None
    largest_gap: float
    late_ttft: float | None
    output_tokens: float
    input_tokens: float
    cached_tokens: float


class Comparison(Struct, frozen=True, kw_only=True):
    """Ours divided by a peer: medians over the rounds of the ratios inside each round."""

    workload: str
    peer: str
    tokens_per_second: float | None
    ttft_median: float | None
    largest_gap: float | None


Run = tuple[str, str]
"""A workload and a system, in every round."""


class Results:
    """All measurements of a benchmark."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._measured = {(one.workload, one.system, one.round): one.measurement for one in results}
        self._workloads = list(dict.fromkeys(one.workload for one in results))
        self._systems = list(dict.fromkeys(one.system for one in results))
        self._rounds = list(dict.fromkeys(one.round for one in results))

    def summaries(self) -> list[Summary]:
        """One per workload and system."""
        return [self._summary(workload, system) for workload in self._workloads for system in self._systems]

    def comparisons(self) -> list[Comparison]:
        """One per workload and peer; none when our server was not measured."""
        if OURS not in self._systems:
            return []
        peers = [system for system in self._systems if system != OURS]
        return [self._comparison(workload, peer) for workload in self._workloads for peer in peers]

    def _summary(self, workload: str, system: str) -> Summary:
        this = (workload, system)
        runs = [self._measured[*this, number] for number in self._rounds]
        speeds = [run.tokens_per_second for run in runs]
        late = [run.late_ttft for run in runs if run.late_ttft is not None]
        return Summary(
            workload=workload,
            system=system,
            tokens_per_second=median(speeds),
            slowest=min(speeds),
            fastest=max(speeds),
            of_in_process=self._ratio(this, (workload, IN_PROCESS), lambda one: one.tokens_per_second),
            seconds=median(run.seconds for run in runs),
            ttft_median=median(run.ttft_median for run in runs),
            ttft_max=median(run.ttft_max for run in runs),
            ttft_of_one=self._ratio(this, (streams_at_once(1), system), lambda one: one.ttft_median),
            largest_gap=median(run.largest_gap for run in runs),
            late_ttft=median(late) if late else None,
            output_tokens=median(run.output_tokens for run in runs),
            input_tokens=median(run.input_tokens for run in runs),
            cached_tokens=median(run.cached_tokens for run in runs),
        )

    def _comparison(self, workload: str, peer: str) -> Comparison:
        ours, theirs = (workload, OURS), (workload, peer)
        return Comparison(
            workload=workload,
            peer=peer,
            tokens_per_second=self._ratio(ours, theirs, lambda one: one.tokens_per_second),
            ttft_median=self._ratio(ours, theirs, lambda one: one.ttft_median),
            largest_gap=self._ratio(ours, theirs, lambda one: one.largest_gap),
        )

    def _ratio(self, run: Run, base: Run, figure: Callable[[Measurement], float]) -> float | None:
        """The median over the rounds of one run's figure to another's, where both have one."""
        pairs = [
            (figure(self._measured[*run, number]), figure(self._measured[*base, number]))
            for number in self._rounds
            if (*base, number) in self._measured
        ]
        ratios = [value / base_value for value, base_value in pairs if base_value > 0]
        return median(ratios) if ratios else None


def tables(results: Results) -> list[Table]:
    """For people."""
    compared = results.comparisons()
    both = [_summary_table(results.summaries())]
    return [*both, _comparison_table(compared)] if compared else both


def _summary_table(summaries: Sequence[Summary]) -> Table:
    header = (
        "workload, system", "tok/s", "min–max", "of in-process", "seconds", "TTFT ms", "TTFT max ms",
        "of 1 stream's TTFT", "largest gap ms", "TTFT of the late prompt ms", "tokens", "prompt tokens",
        "of these cached",
    )  # fmt: skip
    rows = tuple(
        (
            f"{one.workload}, {one.system}",
            f"{one.tokens_per_second:.1f}",
            f"{one.slowest:.1f}–{one.fastest:.1f}",
            _number(one.of_in_process, 3),
            f"{one.seconds:.2f}",
            f"{one.ttft_median:.0f}",
            f"{one.ttft_max:.0f}",
            _number(one.ttft_of_one, 2),
            f"{one.largest_gap:.0f}",
            _number(one.late_ttft, 0),
            f"{one.output_tokens:.0f}",
            f"{one.input_tokens:.0f}",
            f"{one.cached_tokens:.0f}",
        )
        for one in summaries
    )
    return Table("Medians of the rounds", header, rows)


def _comparison_table(comparisons: Sequence[Comparison]) -> Table:
    header = ("workload, peer", "tok/s", "TTFT", "largest gap")
    rows = tuple(
        (
            f"{one.workload}, {one.peer}",
            _number(one.tokens_per_second, 3),
            _number(one.ttft_median, 3),
            _number(one.largest_gap, 3),
        )
        for one in comparisons
    )
    return Table("Ours divided by each peer: medians of the ratios inside each round", header, rows)


def _number(value: float | None, digits: int) -> str:
    return NO_VALUE if value is None else f"{value:.{digits}f}"
