"""Jobs on an engine that fails, dies or hangs, and on a server that is told to stop.

Every job ends and can be polled, and so does the process end.
"""

from __future__ import annotations

import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from support.jobs import Job, create_job
from support.resources import ServerProcess, serving_process
from support.served import EventReader, checked_error, serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.published import Json

ROWS = (
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(when="song", emit=("la ",) * 20, delay=0.01),
    ScriptRow(when="bad", emit=("a", "b"), then="raise"),
    ScriptRow(when="die", emit=("last words",), then="die"),
    ScriptRow(when="hang", emit=("last words",), then="hang"),
    ScriptRow(emit=("ok",)),
)
JOBS = SLOTS = 8
STREAMS = 4
PATIENCE_SECONDS = 30
"""Many times what a server takes to end that waits for nothing."""


class Crowd:
    """Eight jobs and four streams that are open at the same time.

    Streams and three of the jobs generate without end. The job that brings the fault waits for the eighth
    slot, which ``holder`` has, and the others wait behind it.
    """

    def __init__(
        self, running: list[Job], waiting: list[Job], streams: list[EventReader], holder: EventReader
    ) -> None:
        self.running = running
        self.waiting = waiting
        self.streams = streams
        self.holder = holder

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return [*self.running, *self.waiting]

    async def ends(self) -> tuple[list[Json], list[Json]]:
        """The final objects of the jobs and of the streams."""
        return [await job.end() for job in self.jobs], [await stream.rest() for stream in self.streams]


@asynccontextmanager
async def crowd(server: ServerProcess, fault: str) -> AsyncIterator[Crowd]:
    """A crowd; when its holder leaves, ``fault`` runs."""
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(server.open_stream(input="endless")) for _ in range(STREAMS + 1)
        ]
        for stream in streams:
            await stream.next("response.output_text.delta")
        running = [await create_job(server, input="endless") for _ in range(SLOTS - len(streams))]
        for job in running:
            await job.until("in_progress")
        texts = [fault, *["too late"] * (JOBS - len(running) - 1)]
        waiting = [await create_job(server, input=text) for text in texts]
        await server.until(running=SLOTS, waiting=len(waiting), jobs=JOBS)
        yield Crowd(running, waiting, streams[1:], streams[0])


serving = partial(serving_process, flags=("--parallel", str(SLOTS), "--graceful-timeout", "1"))


def check_failed(ends: list[Json]) -> None:
    """All have failed as the engine did, and show no output."""
    assert [(end["status"], end["error"]["code"]) for end in ends] == [("failed", "server_error")] * JOBS
    assert [end["output"] for end in ends] == [[]] * JOBS


def check_told(ends: list[Json]) -> None:
    """All streams have failed and kept what was sent."""
    assert [(end["status"], end["error"]["code"]) for end in ends] == [("failed", "server_error")] * STREAMS
    assert all(text_of(end).startswith("la ") for end in ends)


async def assert_takes_no_work(server: ServerProcess, state: str) -> None:
    """Neither in the background nor before it, and ``/health`` says why."""
    for fields in ({"background": True}, {"background": True, "store": False}, {}, {"stream": True}):
        reply = await server.refusal(**fields)
        error = checked_error(reply)
        assert (reply.status_code, error["type"], error["code"]) == (
            503,
            "server_error",
            "engine_unavailable",
        )
    report = await server.client.get("/health")
    health = report.json()
    assert (report.status_code, health["ok"], health["engine"]) == (503, False, state)
    assert (health["jobs"], health["job_bytes"], health["running"], health["waiting"]) == (0, 0, 0, 0)


async def ends_on_sigterm(server: ServerProcess) -> int:
    """Tell it to end; its status when it did so in time."""
    server.send_signal(signal.SIGTERM)
    with trio.fail_after(PATIENCE_SECONDS):
        return await server.exit_code()


async def test_a_job_that_fails_leaves_the_others_alone() -> None:
    async with serving_script(*ROWS, parallel=6) as served:
        jobs = [await create_job(served, input=text) for text in ("bad", "song") * 4]
        async with served.open_stream(input="bad") as bad, served.open_stream(input="song") as song:
            assert ((await bad.rest())["status"], text_of(await song.rest())) == ("failed", "la " * 20)
        ends = [await job.end() for job in jobs]
        assert (await served.health())["engine"] == "running"
        await served.until(jobs=0, job_bytes=0)
        assert text_of(await (await create_job(served, input="song")).end()) == "la " * 20
    assert [end["status"] for end in ends] == ["failed", "completed"] * 4
    assert {end["error"]["code"] for end in ends[::2]} == {"server_error"}
    assert [end["output"] for end in ends[::2]] == [[]] * 4
    assert {text_of(end) for end in ends[1::2]} == {"la " * 20}


async def test_a_process_whose_jobs_fail_goes_on_and_ends(tmp_path: Path) -> None:
    async with serving(tmp_path, *ROWS) as server:
        for _ in range(2):
            jobs = [await create_job(server, input="bad") for _ in range(JOBS)]
            check_failed([await job.end() for job in jobs])
            await server.until(jobs=0, job_bytes=0, running=0, rows=0)
        assert await ends_on_sigterm(server) == 0


async def test_an_engine_that_dies(tmp_path: Path) -> None:
    async with serving(tmp_path, *ROWS) as server:
        async with crowd(server, "die") as open_at_death:
            await open_at_death.holder.leave()
            jobs, streams = await open_at_death.ends()
        check_failed(jobs)
        check_told(streams)
        await assert_takes_no_work(server, "stopped")
        for job in open_at_death.jobs:  # none of them changes any more
            assert await job.poll() == await job.cancel()
            await job.delete()
        assert await ends_on_sigterm(server) == 0


async def test_an_engine_that_hangs_for_longer_than_it_may(tmp_path: Path) -> None:
    flags = ("--parallel", str(SLOTS), "--graceful-timeout", "1", "--decode-timeout", "1")
    async with serving_process(tmp_path, *ROWS, flags=flags) as server:
        async with crowd(server, "hang") as open_at_hang:
            await open_at_hang.holder.leave()
            jobs, streams = await open_at_hang.ends()
        check_failed(jobs)
        check_told(streams)
        await assert_takes_no_work(server, "hanging")
        for job in open_at_hang.jobs:
            assert await job.poll() == await job.cancel()
            await job.delete()
        assert await ends_on_sigterm(server) == 1, "its thread cannot be ended"


async def test_an_engine_that_may_hang_for_ever(tmp_path: Path) -> None:
    """Jobs stay open, to be polled and cancelled, until the process is told to end."""
    async with serving(tmp_path, *ROWS) as server, crowd(server, "hang") as hanging:
        await hanging.holder.leave()
        first, *_ = hanging.waiting
        await first.until("in_progress")
        await server.until(waiting=len(hanging.waiting) - 1, jobs=JOBS)
        for job in hanging.jobs:
            status = "in_progress" if job in (*hanging.running, first) else "queued"
            assert (await job.poll())["status"] == status
        late = await create_job(server, input="later still")
        for job in (first, hanging.running[0], hanging.waiting[-1], late):
            assert (await job.cancel())["status"] == "cancelled"
        await server.until(jobs=JOBS - 3)
        assert await ends_on_sigterm(server) == 1
        check_told([await stream.rest() for stream in hanging.streams])


def ends_in_the_log(capfd: pytest.CaptureFixture[str]) -> list[tuple[str, str | None]]:
    """Status and reason of each job, as the process has logged it."""
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    assert not [line for line in lines if line["level"] == "error"]
    return [(line["status"], line["reason"]) for line in lines if line["event"] == "job"]


LOGGING = ("--log-level", "info", "--log-format", "json", "--parallel", str(SLOTS))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_server_that_only_jobs_keep_busy_ends_at_once(
    number: signal.Signals, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = (*LOGGING, "--graceful-timeout", str(2 * PATIENCE_SECONDS))
    async with serving_process(tmp_path, *ROWS, flags=flags, within=3 * PATIENCE_SECONDS) as server:
        jobs = [await create_job(server, input="endless") for _ in range(2 * SLOTS)]
        for job in jobs[:SLOTS]:
            await job.until("in_progress")
        await server.until(running=SLOTS, waiting=SLOTS)
        server.send_signal(number)
        with trio.fail_after(PATIENCE_SECONDS):
            assert await server.exit_code() == 0
    ends = ends_in_the_log(capfd)
    assert (
        sorted(ends) == [("in_progress", "server_stopped")] * SLOTS + [("queued", "server_stopped")] * SLOTS
    )


async def test_jobs_go_on_while_a_stream_is_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A job that ends in the grace period has ended well; the others end with it, like the stream."""
    flags = (*LOGGING, "--graceful-timeout", "2")
    async with serving_process(tmp_path, *ROWS, flags=flags) as server:
        async with crowd(server, "song") as unfinished:
            await unfinished.streams[0].next("response.output_text.delta")
            server.send_signal(signal.SIGTERM)
            await unfinished.holder.leave()
            check_told([await stream.rest() for stream in unfinished.streams])
        with trio.fail_after(PATIENCE_SECONDS):
            assert await server.exit_code() == 0
    ends = ends_in_the_log(capfd)
    assert sorted(ends, key=str) == sorted(
        [("completed", None)] * len(unfinished.waiting)
        + [("failed", "server_error")] * len(unfinished.running),
        key=str,
    )
