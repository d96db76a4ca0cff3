"""Background responses on real models, beside streams: the tiny model, and in the long lane the demo model.

``pytest -m long -s`` prints the figures.
"""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.jobs import UNFINISHED, Job, create_job, request_job
from support.served import ServerClient, body_of, http_client, reasoning_of, text_of
from support.served_model import TINY_MODEL, serving_model, tiny_traces

from mlxcel_trio.engine.api import Engine
from mlxcel_trio.engine.backend import Prefilled
from mlxcel_trio.engine.mlx_engine import mlx_engine
from mlxcel_trio.server import Model, serve_engine
from mlxcel_trio.service.jobs import Jobs
from mlxcel_trio.settings import Settings
from mlxcel_trio.testing.sse import SseReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    import httpx
    from support.published import Json

    from mlxcel_trio.engine.api import Tokenizer
    from mlxcel_trio.engine.backend import Backend, LoadedModel, Row, RowEvent
    from mlxcel_trio.engine.tokenizer import ChatTokenizer
    from mlxcel_trio.service.pipeline import ResponseRun

PLAIN = {trace.name: trace for trace in tiny_traces() if not trace.tools}
QUESTION = "What is the number {} good for?"

MANY_JOBS = 64
STREAMS = 4
ALONE_TOKENS = 40
ASKED_BEFORE = 16
"""Requests in the foreground, to compare with."""
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 1200


class WatchedBackend:
    """A backend that notes in which order rows begin their prefill, by the numbers in their prompts."""

    def __init__(self, backend: Backend, decode: Callable[[Sequence[int]], str]) -> None:
        self._backend = backend
        self._decode = decode
        self._numbers: dict[int, int] = {}
        self.begun: list[int] = []

    def load(self) -> LoadedModel:
        return self._backend.load()

    def insert(self, row: Row) -> None:
        if found := re.search(QUESTION.replace("?", r"\?").format(r"(\d+)"), self._decode(row.prompt)):
            self._numbers[row.row_id] = int(found[1])
        self._backend.insert(row)

    def remove(self, row_id: int) -> None:
        self._backend.remove(row_id)

    def step(self) -> list[RowEvent]:
        events = self._backend.step()
        for event in events:
            if isinstance(event, Prefilled) and event.row_id in self._numbers:
                self.begun.append(self._numbers.pop(event.row_id))
        return events

    def close(self) -> None:
        self._backend.close()


class WatchedServer(ServerClient):
    """A server whose jobs are watched: ``admitted`` has the ids of responses, in that order."""

    def __init__(
        self, url: str, client: httpx.AsyncClient, backend: WatchedBackend, tokenizer: ChatTokenizer
    ) -> None:
        super().__init__(url, client)
        self.backend = backend
        self.tokenizer = tokenizer
        self.admitted: list[str] = []


@asynccontextmanager
async def serving_watched(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, parallel: int, limit_seconds: float = 120
) -> AsyncIterator[WatchedServer]:
    """A server on the model in ``directory``; it has to become idle and to end by its shutdown."""
    load = mlx_engine(directory, parallel=parallel)._load
    watched: list[tuple[ChatTokenizer, WatchedBackend]] = []

    def load_watched() -> tuple[Tokenizer, WatchedBackend]:
        tokenizer, backend = load()
        watched.append((tokenizer, WatchedBackend(backend, tokenizer.decode)))  # type: ignore[attr-defined, arg-type]
        return watched[0]

    start = Jobs.start

    def note_and_start(jobs: Jobs, run: ResponseRun, enter_queue: Callable[[], None]) -> None:
        server.admitted.append(run.response_id)
        start(jobs, run, enter_queue)

    monkeypatch.setattr(Jobs, "start", note_and_start)
    shutdown = trio.Event()
    serve = partial(
        serve_engine,
        Settings(port=0, parallel=parallel),
        Engine(load_watched),
        Model((directory.name,)),
        shutdown=shutdown,
    )
    with trio.fail_after(limit_seconds):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve)
            tokenizer, backend = watched[0]
            async with http_client(url) as client:
                server = WatchedServer(url, client, backend, tokenizer)
                yield server
                await server.idle()
            shutdown.set()


async def create_all_at_once(served: WatchedServer, count: int, **fields: Any) -> dict[int, Job]:
    """Jobs that ask for the numbers below ``count``."""
    jobs: dict[int, Job] = {}

    async def create(number: int) -> None:
        body = {"input": QUESTION.format(number), "temperature": 0} | fields
        jobs[number] = Job(served, await request_job(served, **body))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(create, number)
    return jobs


def check_begun_in_order(served: WatchedServer, jobs: dict[int, Job]) -> None:
    """Every job has begun its prefill, in the order in which they were admitted."""
    numbers = {job.id: number for number, job in jobs.items()}
    assert served.backend.begun == [numbers[response_id] for response_id in served.admitted]
    assert sorted(served.backend.begun) == sorted(jobs)


# The tiny model


def answer(response: Json) -> tuple[str, str, str, Json]:
    """What a response and another to the same request have in common."""
    return response["status"], reasoning_of(response), text_of(response), response["usage"]


async def test_jobs_beside_a_stream_answer_as_they_do_alone() -> None:
    bodies = [trace.body for name, trace in PLAIN.items() if name != "story"]
    async with serving_model(parallel=3) as served:
        alone = [answer(await served.create(**body)) for body in bodies]
        async with served.open_stream(**PLAIN["story"].body) as stream:
            await stream.next("response.output_text.delta")
            jobs = [await create_job(served, **body) for body in bodies]
            assert [answer(await job.end()) for job in jobs] == alone
            assert text_of(await stream.rest()) == PLAIN["story"].answer
        await served.until(jobs=0, job_bytes=0)


async def test_a_job_that_is_cancelled_frees_its_row() -> None:
    async with serving_model(parallel=1) as served:
        job = await create_job(served, **PLAIN["story"].body)
        await job.until("in_progress")
        following = await create_job(served, **PLAIN["capital"].body)
        assert (await job.cancel())["status"] == "cancelled"
        assert text_of(await following.end()) == PLAIN["capital"].answer
        report = await served.until(jobs=0, rows=0)
        assert report["sampled_tokens"] < 300, "of the 566 that the answer has"


async def test_a_prompt_that_does_not_fit_fails_its_job() -> None:
    async with serving_model(ctx_size=64) as served:
        job = await create_job(served, input="word " * 64)
        fits = await create_job(served, **PLAIN["capital"].body)
        assert (await job.end())["error"]["code"] == "invalid_prompt"
        assert (await fits.end())["status"] == "completed"


async def test_jobs_begin_in_order_of_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_watched(TINY_MODEL, monkeypatch, parallel=3) as served:
        async with served.open_stream(**PLAIN["story"].body) as stream:
            await stream.next("response.output_text.delta")
            jobs = await create_all_at_once(served, 24, max_output_tokens=8)
            ends = [await job.end() for job in jobs.values()]
        check_begun_in_order(served, jobs)
    assert {end["status"] for end in ends} <= {"completed", "incomplete"}


# The demo model


class Listener:
    """A client of a stream without end that reads fast, hence without checks; it notes when text arrives."""

    def __init__(self, served: WatchedServer, text: str) -> None:
        endless = {str(token): -100 for token in served.tokenizer.end_tokens}
        fields = {"input": text, "temperature": 0, "logit_bias": endless, "stream": True}
        self._served = served
        self._body = json.dumps(body_of(fields)).encode()
        self._more = trio.Event()
        self.arrivals: list[float] = []

    async def run(self) -> None:
        """Read until cancelled."""
        async with self._served.connect() as client:
            await client.send("POST", "/v1/responses", body=self._body)
            assert (await client.head()).status_code == 200
            reader = SseReader()
            while chunk := await client.chunk():
                events = [frame.event for frame in reader.feed(chunk)]
                self.arrivals += [trio.current_time()] * events.count("response.output_text.delta")
                self._more.set()
                self._more = trio.Event()

    async def wait_for(self, pieces: int) -> None:
        """Return when so many more pieces of text have arrived."""
        enough = len(self.arrivals) + pieces
        while len(self.arrivals) < enough:
            await self._more.wait()


class Gaps:
    """Seconds between two neighbouring pieces of text of one stream, of all streams."""

    def __init__(self, listeners: Sequence[Listener], since: float) -> None:
        self._gaps = [
            later - earlier
            for listener in listeners
            for earlier, later in pairwise(listener.arrivals)
            if later >= since
        ]
        self.largest = max(self._gaps)
        self.p99 = quantiles(self._gaps, n=100, method="inclusive")[98]

    def __str__(self) -> str:
        p50 = quantiles(self._gaps, n=2, method="inclusive")[0]
        return f"{len(self._gaps)} gaps, p50 {p50:.3f} s, p99 {self.p99:.3f} s, largest {self.largest:.3f} s"


async def ask_in_the_foreground(served: WatchedServer) -> None:
    """Requests like the jobs, all at once."""

    async def ask(number: int) -> None:
        await served.create(input=f"Which is more, {number} or 1?", temperature=0, max_output_tokens=16)

    async with trio.open_nursery() as nursery:
        for number in range(ASKED_BEFORE):
            nursery.start_soon(ask, number)


async def patient_end(job: Job) -> Json:
    """Poll as clients do, lest polls be what is measured."""
    while job.last["status"] in UNFINISHED:
        await trio.sleep(POLL_SECONDS)
        await job.poll()
    return job.last


@pytest.mark.long
async def test_many_jobs_beside_streams(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All finish, and begin in order. What they cost the streams is printed; a benchmark measures it."""
    async with serving_watched(demo, monkeypatch, parallel=8, limit_seconds=PATIENCE_SECONDS) as served:
        stories = [f"Write a very long novel about {number} ships." for number in range(STREAMS)]
        listeners = [Listener(served, text) for text in stories]
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(listener.run)
            for listener in listeners:
                await listener.wait_for(1)
            since = trio.current_time()
            await listeners[0].wait_for(ALONE_TOKENS)
            alone = Gaps(listeners, since)
            since = trio.current_time()
            await ask_in_the_foreground(served)
            foreground = Gaps(listeners, since)
            since = trio.current_time()
            jobs = await create_all_at_once(served, MANY_JOBS, max_output_tokens=16)
            created = trio.current_time() - since
            ends = [await patient_end(job) for job in jobs.values()]
            finished = trio.current_time() - since
            background = Gaps(listeners, since)
            nursery.cancel_scope.cancel()
        check_begun_in_order(served, jobs)
        await served.until(jobs=0, job_bytes=0)
    print(  # noqa: T201
        f"\n{MANY_JOBS} jobs: created within {created:.2f} s, finished within {finished:.1f} s\n"
        f"streams alone: {alone}\nwith requests: {foreground}\nwith jobs: {background}\n"
        f"largest gap with jobs: {background.largest / alone.largest:.2f} times that of the streams alone"
    )
    assert {end["status"] for end in ends} <= {"completed", "incomplete"}
    assert all(text_of(end) for end in ends)
