"""The clients of the measured server: of jobs, and of streams that do not end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import Struct

from benchmarks.http_client import HttpConnection, connect
from benchmarks.serving.event_stream import EventReader, read_response_event

if TYPE_CHECKING:
    from collections.abc import Sequence

UNFINISHED = ("queued", "in_progress")


class _Usage(Struct):
    input_tokens: int
    output_tokens: int


class JobState(Struct):
    """What matters of a response object."""

    id: str
    status: str
    usage: _Usage


_decode = msgspec.json.Decoder(JobState).decode


class Times:
    """Seconds from each request to the end of its answer."""

    def __init__(self) -> None:
        self.answers: list[float] = []
        self.creates: list[float] = []
        self.polls: list[float] = []
        self.cancels: list[float] = []


class Client:
    """Sends requests on one connection, one after the other.

    ``times`` collects how long requests took.
    """

    def __init__(self, connection: HttpConnection, times: Times) -> None:
        self._connection = connection
        self._times = times

    async def create(self, text: str, max_tokens: int) -> JobState:
        """A new job."""
        body = _body(text, max_tokens) | {"background": True}
        return await self._timed(self._times.creates, "POST", "/v1/responses", body)

    async def ask(self, text: str, max_tokens: int) -> JobState:
        """The same in the foreground: returns with the answer."""
        return await self._timed(self._times.answers, "POST", "/v1/responses", _body(text, max_tokens))

    async def poll(self, job: JobState) -> JobState:
        """The job as it stands."""
        return await self._timed(self._times.polls, "GET", f"/v1/responses/{job.id}")

    async def cancel(self, job: JobState) -> JobState:
        """The job, which has ended now."""
        return await self._timed(self._times.cancels, "POST", f"/v1/responses/{job.id}/cancel")

    async def wait(self, job: JobState, pause: float) -> JobState:
        """Poll a job to its end, with so many seconds between two polls.

        :raises RuntimeError: it ended without an answer.
        """
        while job.status in UNFINISHED:
            await trio.sleep(pause)
            job = await self.poll(job)
        if job.status not in ("completed", "incomplete"):
            raise RuntimeError(f"job {job.id} ended as {job.status}")
        return job

    async def _timed(self, times: list[float], method: str, path: str, body: Any = None) -> JobState:
        encoded = b"" if body is None else msgspec.json.encode(body)
        received = b""
        sent = time.perf_counter()
        await self._connection.send(method, path, encoded)
        while (piece := await self._connection.receive()) is not None:
            received += piece
        times.append(time.perf_counter() - sent)
        return _decode(received)


def _body(text: str, max_tokens: int) -> dict[str, Any]:
    return {"model": "local", "input": text, "max_output_tokens": max_tokens, "temperature": 0}


class Streams:
    """Streams that go on until they are cancelled. An answer that ends is followed by another.

    ``answers`` has the arrival times of the pieces of text of each answer so far.
    """

    def __init__(self, url: str, texts: Sequence[str]) -> None:
        self._url = url
        self._texts = texts
        self.answers: list[list[float]] = []
        self._arrived = 0
        self._more = trio.Event()

    async def run(self) -> None:
        """Read all of them; never returns."""
        async with trio.open_nursery() as nursery:
            for text in self._texts:
                nursery.start_soon(self._read, text)

    async def wait_for(self, pieces: int) -> None:
        """Return when so many more pieces have arrived on average of each stream."""
        until = self._arrived + pieces * len(self._texts)
        while self._arrived < until:
            self._more = trio.Event()
            await self._more.wait()

    async def wait_for_all(self) -> None:
        """Return when each stream has begun to answer."""
        while len([arrivals for arrivals in self.answers if arrivals]) < len(self._texts):
            await self.wait_for(1)

    async def _read(self, text: str) -> None:
        body = {"model": "local", "input": text, "temperature": 0, "stream": True, "store": False}
        async with connect(self._url) as connection:
            while True:
                await self._read_answer(connection, msgspec.json.encode(body))

    async def _read_answer(self, connection: HttpConnection, body: bytes) -> None:
        arrivals: list[float] = []
        self.answers.append(arrivals)
        reader = EventReader()
        await connection.send("POST", "/v1/responses", body)
        while (piece := await connection.receive()) is not None:
            now = time.perf_counter()
            new = sum(read_response_event(data).text for data in reader.feed(piece))
            arrivals += [now] * new
            self._arrived += new
            self._more.set()
