"""``python -m benchmarks.http_cost``: measure, and write a table and all figures."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import Struct

from benchmarks.arguments import at_least
from benchmarks.child import Child, open_child
from benchmarks.http_client import HttpConnection, connect
from benchmarks.http_cost.answers import EVENTS_AROUND_DELTAS, STEP_SECONDS
from benchmarks.http_cost.server import BARE, OURS
from benchmarks.report import RESULTS_DIRECTORY, Table, look_around, write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

BURST = 8


class Options(Struct, frozen=True, kw_only=True):
    """The command line; ``requests`` and ``events`` are per connection and round."""

    connections: int
    requests: int
    events: int
    rounds: int
    output: Path


class Case(Struct, frozen=True):
    """``requests`` times ``body`` on every connection; each counts as ``units``."""

    name: str
    body: dict[str, Any]
    requests: int
    units: int


class Server(Struct, frozen=True):
    """A server that is ready, and the process that tells its CPU time."""

    name: str
    url: str
    process: Child

    async def cpu_seconds(self) -> float:
        """User and system time since the process began."""
        return float(await self.process.ask(""))


class Result(Struct, frozen=True):
    """CPU time of one server for one case in one round, per request or event."""

    round: int
    case: str
    server: str
    microseconds: float


def cases(options: Options) -> list[Case]:
    """A small JSON request, and streams whose events go out one by one or in bursts."""
    plain = {"model": "benchmark", "input": "What is the capital of France?"}
    stream = {**plain, "stream": True, "max_output_tokens": options.events}
    events = options.events + EVENTS_AROUND_DELTAS
    return [
        Case("JSON request", plain, options.requests, 1),
        Case("event, each written alone", stream, 1, events),
        Case(f"event, {BURST} to a write", {**stream, "metadata": {"burst": str(BURST)}}, 1, events),
    ]


async def measure(options: Options, logs: Path) -> list[Result]:
    """Start both servers, measure them in turn, end them."""
    async with AsyncExitStack() as opened:
        servers = []
        for name in (OURS, BARE):
            command = [sys.executable, "-m", "benchmarks.http_cost.server", name]
            process = await opened.enter_async_context(open_child(command, log=logs / name))
            servers.append(Server(name, await process.read_line(), process))
        for server in servers:
            for case in cases(options):
                await _run(server, case, connections=1)
        return [
            Result(number, case.name, server.name, await _cost(server, case, options.connections))
            for number in range(1, options.rounds + 1)
            for case in cases(options)
            for server in servers
        ]


async def _cost(server: Server, case: Case, connections: int) -> float:
    """CPU microseconds per unit."""
    before = await server.cpu_seconds()
    await _run(server, case, connections)
    used = await server.cpu_seconds() - before
    cost = used * 1e6 / (connections * case.requests * case.units)
    print(f"{case.name:28} {server.name:6} {cost:8.1f} us", file=sys.stderr, flush=True)
    return cost


async def _run(server: Server, case: Case, connections: int) -> None:
    body = msgspec.json.encode(case.body)
    async with AsyncExitStack() as opened, trio.open_nursery() as nursery:
        # All are connected before the first one sends.
        clients = [await opened.enter_async_context(connect(server.url)) for _ in range(connections)]
        for client in clients:
            nursery.start_soon(_ask_repeatedly, client, body, case.requests)


async def _ask_repeatedly(client: HttpConnection, body: bytes, times: int) -> None:
    for _ in range(times):
        await client.send("POST", "/v1/responses", body)
        while await client.receive() is not None:
            pass


def table(results: Sequence[Result]) -> Table:
    """Medians over the rounds, and the median of the ratios inside each round."""
    header = ("CPU microseconds per", "ours", "bare h11", "min–max ours", "min–max h11", "ours / h11")
    rows = []
    for case in dict.fromkeys(result.case for result in results):
        ours, bare = (_of(results, case, server) for server in (OURS, BARE))
        ratios = [one / other for one, other in zip(ours, bare, strict=True)]
        spans = [f"{min(costs):.1f}–{max(costs):.1f}" for costs in (ours, bare)]
        rows.append((case, f"{median(ours):.1f}", f"{median(bare):.1f}", *spans, f"{median(ratios):.2f}"))
    return Table("CPU time of the server process, user and system", header, tuple(rows))


def _of(results: Sequence[Result], case: str, server: str) -> list[float]:
    return [one.microseconds for one in results if (one.case, one.server) == (case, server)]


def main() -> None:
    """Parse, measure, write."""
    options = parse_options(sys.argv[1:])
    surroundings = look_around()
    with tempfile.TemporaryDirectory(prefix="mlxcel-benchmark-") as work:
        results = trio.run(measure, options, Path(work))
    written = write_report(
        "http-cost",
        surroundings,
        settings={
            "rounds": options.rounds,
            "connections": options.connections,
            "requests per connection": options.requests,
            "deltas per stream": options.events,
            "seconds between events": STEP_SECONDS,
        },
        tables=[table(results)],
        figures={"results": results},
        directory=options.output,
    )
    for path in written:
        print(f"Written: {path}", file=sys.stderr)


def parse_options(argv: Sequence[str]) -> Options:
    """Read the command line; ends the process when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http_cost",
        description="Measure the CPU time that our HTTP side takes beside bare h11 on trio.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--connections", type=at_least(1), default=16, help="at once")
    parser.add_argument(
        "--requests", type=at_least(1), default=250, help="JSON requests per connection and round"
    )
    parser.add_argument("--events", type=at_least(1), default=1000, help="text deltas per stream")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="rounds of all cases on both servers")
    parser.add_argument("--output", type=Path, default=RESULTS_DIRECTORY, help="directory for the results")
    return Options(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
