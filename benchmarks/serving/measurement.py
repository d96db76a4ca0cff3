"""From arrival times to the figures that are compared."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


class StreamTimes(Struct, frozen=True, kw_only=True):
    """One answer as its client saw it. All times are seconds on one clock.

    ``arrivals``: of each piece of text, which is nearly always one token; ``finished``: of the word that the
    answer is complete. Token counts are the system's own; ``cached_tokens`` of the prompt were not computed.
    """

    sent: float
    arrivals: tuple[float, ...]
    finished: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class Measurement(Struct, frozen=True, kw_only=True):
    """One workload on one system, once. Times in milliseconds but for ``seconds``.

    ``seconds``: from the first prompt sent to the last answer complete. ``largest_gap``: between two pieces
    of one stream's text. Where a prompt joined late, ``ttft_median`` and ``ttft_max`` are those of the other
    streams, ``late_ttft`` is its own, and ``largest_gap`` counts only after it was sent, without its own.
    """

    seconds: float
    tokens_per_second: float
    ttft_median: float
    ttft_max: float
    largest_gap: float
    late_ttft: float | None
    output_tokens: int
    input_tokens: int
    cached_tokens: int


def measure(streams: Sequence[StreamTimes], late: StreamTimes | None) -> Measurement:
    """The figures of one run."""
    everyone = [*streams, late] if late is not None else list(streams)
    seconds = max(times.finished for times in everyone) - min(times.sent for times in everyone)
    output_tokens = sum(times.output_tokens for times in everyone)
    ttfts = [_ttft(times) for times in streams]
    return Measurement(
        seconds=seconds,
        tokens_per_second=output_tokens / seconds,
        ttft_median=1000 * median(ttfts),
        ttft_max=1000 * max(ttfts),
        largest_gap=1000 * _largest_gap(streams, since=0.0 if late is None else late.sent),
        late_ttft=None if late is None else 1000 * _ttft(late),
        output_tokens=output_tokens,
        input_tokens=sum(times.input_tokens for times in everyone),
        cached_tokens=sum(times.cached_tokens for times in everyone),
    )


def _ttft(times: StreamTimes) -> float:
    """To the first text; an answer without any counts up to its end."""
    return (times.arrivals[0] if times.arrivals else times.finished) - times.sent


def _largest_gap(streams: Sequence[StreamTimes], *, since: float) -> float:
    gaps = (
        later - earlier
        for times in streams
        for earlier, later in zip(times.arrivals, times.arrivals[1:], strict=False)
        if later >= since
    )
    return max(gaps, default=0.0)
