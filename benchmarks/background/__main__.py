"""``python -m benchmarks.background``: measure, and write tables and all figures."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from benchmarks.arguments import at_least
from benchmarks.background.clients import Client, JobState, Streams, Times
from benchmarks.background.figures import Figures, gaps, spread, tables
from benchmarks.child import open_child
from benchmarks.http_client import connect
from benchmarks.report import RESULTS_DIRECTORY, look_around, write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

READY_SECONDS = 600.0
"""For the server to fetch and load its model."""

RUN_LIMIT_SECONDS = 600.0
KEEP_ALIVE_SECONDS = 60
"""More than there is between two polls."""

IDLE_POLLS = 200
IDLE_POLL_PAUSE = 0.002
IDLE_WAIT_PAUSE = 0.05
ONE_MORE_PAUSE = 0.5

STORIES = ("a lighthouse", "two foxes", "the last train", "a clockmaker")


class Options(Struct, frozen=True, kw_only=True):
    """The command line; tokens are those of one job's answer, or of one stream before the jobs come."""

    model: str | None
    jobs: int
    requests: int
    streams: int
    parallel: int
    new_tokens: int
    prefill_chunk_size: int | None
    idle_jobs: int
    alone_tokens: int
    poll_milliseconds: int
    output: Path


async def measure(options: Options, url: str) -> Figures:
    """The idle server, streams alone, requests in the foreground beside them, then the jobs instead.

    Streams are alone at the end again: their tokens take longer the more of them there are, and machines
    change pace.
    """
    idle = await _idle(options, url)
    _say("Streams begin")
    streams = Streams(url, [_story(number) for number in range(options.streams)])
    busy, more = Times(), Times()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streams.run)
        await streams.wait_for_all()
        alone_since = time.perf_counter()
        await streams.wait_for(options.alone_tokens)
        _say(f"{options.requests} requests in the foreground")
        asked_at = time.perf_counter()
        await _all_requests(options, url)
        _say(f"{options.jobs} jobs")
        created_at = time.perf_counter()
        async with trio.open_nursery() as one_more:
            one_more.start_soon(_one_more_at_times, url, more)
            jobs = await _all_jobs(options, url, busy)
            one_more.cancel_scope.cancel()
        ended_at = time.perf_counter()
        await streams.wait_for(options.alone_tokens)
        alone_until = time.perf_counter()
        nursery.cancel_scope.cancel()
    return Figures(
        idle_create=spread(idle.creates),
        idle_poll=spread(idle.polls),
        burst_create=spread(busy.creates),
        busy_create=spread(more.creates),
        busy_poll=spread(busy.polls),
        busy_cancel=spread(more.cancels),
        gaps_alone=spread(gaps(streams.answers, since=alone_since, until=asked_at)),
        gaps_with_requests=spread(gaps(streams.answers, since=asked_at, until=created_at)),
        gaps_with_jobs=spread(gaps(streams.answers, since=created_at, until=ended_at)),
        gaps_alone_again=spread(gaps(streams.answers, since=ended_at, until=alone_until)),
        seconds=ended_at - created_at,
        prompt_tokens=sum(job.usage.input_tokens for job in jobs),
        output_tokens=sum(job.usage.output_tokens for job in jobs),
    )


async def _idle(options: Options, url: str) -> Times:
    """Create and poll while nothing else is done: each job is waited for, and polls are of one that ended."""
    _say(f"{options.idle_jobs} jobs one after the other")
    times = Times()
    for number in range(options.idle_jobs):
        async with connect(url) as connection:  # a server closes one that was used very often
            job = await Client(connection, times).create(_question(number), 1)
            job = await Client(connection, Times()).wait(job, IDLE_WAIT_PAUSE)
    async with connect(url) as connection:
        client = Client(connection, times)
        for _ in range(IDLE_POLLS):
            await trio.sleep(IDLE_POLL_PAUSE)
            await client.poll(job)
    return times


async def _all_requests(options: Options, url: str) -> None:
    """Ask for answers like those of the jobs, all at once, each on a connection of its own."""

    async def one(number: int) -> None:
        async with connect(url) as connection:
            await Client(connection, Times()).ask(_question(number), options.new_tokens)

    async with trio.open_nursery() as nursery:
        for number in range(options.requests):
            nursery.start_soon(one, number)


async def _all_jobs(options: Options, url: str, times: Times) -> list[JobState]:
    """Create all jobs at once, each from a connection of its own, and poll each to its end."""
    ended: list[JobState] = []
    go = trio.Event()
    pause = options.poll_milliseconds / 1000

    async def one(number: int, *, task_status: trio.TaskStatus[None]) -> None:
        async with connect(url) as connection:
            task_status.started()
            await go.wait()
            client = Client(connection, times)
            job = await client.create(_question(number), options.new_tokens)
            # So that polls are spread over time as those of clients that know nothing of each other.
            await trio.sleep(pause * number / options.jobs)
            ended.append(await client.wait(job, pause))

    async with trio.open_nursery() as nursery:
        for number in range(options.jobs):
            await nursery.start(one, number)
        go.set()
    return ended


async def _one_more_at_times(url: str, times: Times) -> None:
    """Create a job every now and then and cancel it before its turn comes; never returns."""
    while True:
        async with connect(url) as connection:
            client = Client(connection, times)
            await client.cancel(await client.create(_question(0), 1))
        await trio.sleep(ONE_MORE_PAUSE)


def _question(number: int) -> str:
    return f"What is the number {number} good for?"


def _story(number: int) -> str:
    subject = STORIES[number % len(STORIES)]
    return f"Story {number}: write the first chapter of a very long novel about {subject}."


async def run(options: Options, logs: Path) -> Figures:
    """Start the server, measure, end it."""
    flags = {
        "port": 0,
        "parallel": options.parallel,
        "responses-background-max-jobs": options.jobs + 1,
        "keep-alive-timeout": KEEP_ALIVE_SECONDS,
        "model": options.model,
        "prefill-chunk-size": options.prefill_chunk_size,
    }
    given = [part for name, value in flags.items() if value is not None for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "mlxcel_trio", "serve", *given]
    async with open_child(command, log=logs / "server") as child:
        with trio.fail_after(READY_SECONDS):
            url = await child.read_line()
        with trio.fail_after(RUN_LIMIT_SECONDS):
            return await measure(options, url)


def main() -> None:
    """Parse, measure, write."""
    options = parse_options(sys.argv[1:])
    surroundings = look_around()
    with tempfile.TemporaryDirectory(prefix="mlxcel-benchmark-") as work:
        figures = trio.run(run, options, Path(work))
    written = write_report(
        "background",
        surroundings,
        settings={
            "model": options.model or "the demo model",
            "jobs": options.jobs,
            "requests in the foreground": options.requests,
            "streams": options.streams,
            "parallel": options.parallel,
            "new tokens": options.new_tokens,
            "prefill chunk": options.prefill_chunk_size or "the server's default",
            "milliseconds between polls of a job": options.poll_milliseconds,
        },
        tables=tables(figures),
        figures={"figures": figures},
        directory=options.output,
    )
    for table in tables(figures):
        _say(table.markdown())
    for path in written:
        _say(f"Written: {path}")


def parse_options(argv: Sequence[str]) -> Options:
    """Read the command line; ends the process when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.background",
        description="Measure background jobs, and the streams that run beside them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", help="as for mlxcel serve; default: the demo model")
    add("--jobs", type=at_least(2), default=64, help="created at once")
    add("--requests", type=at_least(2), default=16, help="sent at once in the foreground, before the jobs")
    add("--streams", type=at_least(1), default=4, help="that run before, and beside the jobs")
    add("--parallel", type=at_least(1), default=8, help="slots of the server, for streams and jobs")
    add("--new-tokens", type=at_least(1), default=16, help="tokens per job")
    add("--prefill-chunk-size", type=at_least(1), help="as for mlxcel serve")
    add("--idle-jobs", type=at_least(2), default=30, help="created one after the other on the idle server")
    add("--alone-tokens", type=at_least(2), default=60, help="tokens per stream before the jobs come")
    add("--poll-milliseconds", type=at_least(1), default=1000, help="between two polls of a job")
    add("--output", type=Path, default=RESULTS_DIRECTORY, help="directory for the results")
    return Options(**vars(parser.parse_args(argv)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
