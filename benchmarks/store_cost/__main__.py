"""``python -m benchmarks.store_cost``: measure, and write tables and all figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from msgspec import Struct

from benchmarks.arguments import at_least, list_of
from benchmarks.report import RESULTS_DIRECTORY, Table, look_around, write_report
from benchmarks.store_cost import memory, timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.store_cost.memory import Memory
    from benchmarks.store_cost.timing import Timing


class Options(Struct, frozen=True, kw_only=True):
    """The command line; ``text_bytes`` are of a question, and of an answer, whose memory is measured."""

    lengths: tuple[int, ...]
    text_bytes: tuple[int, ...]
    calls: int
    rounds: int
    responses: int
    output: Path


def time_table(results: Sequence[Timing]) -> Table:
    """Medians over the rounds, least and most."""
    rows = []
    for length in dict.fromkeys(result.length for result in results):
        cells = []
        for operation in timing.OPERATIONS:
            times = [
                one.microseconds for one in results if (one.length, one.operation) == (length, operation)
            ]
            cells.append(f"{median(times):.1f} ({min(times):.1f}–{max(times):.1f})")
        rows.append((str(length), *cells))
    return Table("Microseconds of a call", ("responses in the chain", *timing.OPERATIONS), tuple(rows))


def memory_table(results: Sequence[Memory]) -> Table:
    """Ratios above 1 are memory that the store does not count."""
    meters = list(dict.fromkeys(result.meter for result in results))
    header = ("responses in the chain", "bytes of a text", "counted", *meters)
    header += tuple(f"{meter} / counted" for meter in meters)
    rows = []
    for length, text_bytes in dict.fromkeys((result.length, result.text_bytes) for result in results):
        alike = [result for result in results if (result.length, result.text_bytes) == (length, text_bytes)]
        measured = [f"{one.measured:.0f}" for one in alike]
        ratios = [f"{one.measured / one.counted:.2f}" for one in alike]
        rows.append((str(length), str(text_bytes), f"{alike[0].counted:.0f}", *measured, *ratios))
    return Table("Bytes of a stored response", header, tuple(rows))


def main() -> None:
    """Parse, measure, write."""
    options = parse_options(sys.argv[1:])
    surroundings = look_around()
    sizes = [
        memory.measure(meter, responses=options.responses, length=length, text_bytes=text_bytes)
        for length in options.lengths
        for text_bytes in options.text_bytes
        for meter in memory.meters()
    ]
    times = list(timing.measure(options.lengths, calls=options.calls, rounds=options.rounds))
    tables = [time_table(times), memory_table(sizes)]
    written = write_report(
        "store-cost",
        surroundings,
        settings={
            "rounds": options.rounds,
            "calls in a row": options.calls,
            "bytes of a text where time is measured": timing.TEXT_BYTES,
            "responses stored to measure memory": options.responses,
        },
        tables=tables,
        figures={"times": times, "memory": sizes},
        directory=options.output,
    )
    print("\n".join(table.markdown() for table in tables), file=sys.stderr)
    for path in written:
        print(f"Written: {path}", file=sys.stderr)


def parse_options(argv: Sequence[str]) -> Options:
    """Read the command line; ends the process when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store_cost",
        description="Measure what it costs to keep responses and to continue from them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    count = at_least(1)
    parser.add_argument("--lengths", type=list_of(count), default=(1, 10, 100, 1000), help="of chains")
    parser.add_argument(
        "--text-bytes",
        type=list_of(count),
        default=(100, 2000, 20_000),
        help="of a question and of an answer; for memory",
    )
    parser.add_argument("--calls", type=count, default=1000, help="of an operation in a row")
    parser.add_argument("--rounds", type=count, default=5, help="rounds of all operations")
    parser.add_argument("--responses", type=count, default=2000, help="stored to measure memory")
    parser.add_argument("--output", type=Path, default=RESULTS_DIRECTORY, help="directory for the results")
    return Options(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
