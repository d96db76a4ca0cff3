"""Running a workload on a server, one connection per stream."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from benchmarks.http_client import HttpConnection, connect
from benchmarks.serving.event_stream import Dialect, EventReader, Usage
from benchmarks.serving.measurement import Measurement, StreamTimes, measure
from benchmarks.serving.workload import JOIN_AFTER_TOKENS, Prompt, Workload

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Api:
    """How a server is asked: ``body(text, max_tokens)`` is sent to ``path`` and answered in ``dialect``."""

    path: str
    body: Callable[[str, int], dict[str, Any]]
    dialect: Dialect


class HttpRun:
    """One run of ``workload`` on the server at ``url``."""

    def __init__(self, url: str, api: Api, workload: Workload) -> None:
        self._url = url
        self._api = api
        self._workload = workload
        self._not_decoding = {prompt.text for prompt in workload.prompts}
        self._all_decode = trio.Event()

    async def run(self) -> Measurement:
        """Send everything and read it to the end; an exception group carries what went wrong."""
        streams: list[StreamTimes] = []
        late: list[StreamTimes] = []
        started = trio.Event()
        async with trio.open_nursery() as nursery:
            for prompt in self._workload.prompts:
                # Connected before the clock starts: a server's short queue may make connecting slow.
                await nursery.start(self._connected_stream, prompt, started, streams)
            started.set()
            if self._workload.late is not None:
                await self._all_decode.wait()
                async with connect(self._url) as connection:
                    late.append(await self._read(connection, self._workload.late))
        return measure(streams, late[0] if late else None)

    async def _connected_stream(
        self,
        prompt: Prompt,
        started: trio.Event,
        streams: list[StreamTimes],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with connect(self._url) as connection:
            task_status.started()
            await started.wait()
            streams.append(await self._read(connection, prompt))

    async def _read(self, connection: HttpConnection, prompt: Prompt) -> StreamTimes:
        body = msgspec.json.encode(self._api.body(prompt.text, self._workload.max_tokens))
        reader = EventReader()
        arrivals: list[float] = []
        finished: float | None = None
        usage: Usage | None = None
        sent = time.perf_counter()
        await connection.send("POST", self._api.path, body)
        while (piece := await connection.receive()) is not None:
            now = time.perf_counter()
            for progress in map(self._api.dialect, reader.feed(piece)):
                if progress.text:
                    arrivals.append(now)
                    if len(arrivals) == JOIN_AFTER_TOKENS:
                        self._note_decoding(prompt)
                if progress.complete:
                    finished = now
                usage = progress.usage or usage
        if finished is None or usage is None:
            raise RuntimeError(f"{self._url} ended a stream without saying that it is complete")
        self._note_decoding(prompt)  # or was done before it could
        return StreamTimes(
            sent=sent,
            arrivals=tuple(arrivals),
            finished=finished,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
        )

    def _note_decoding(self, prompt: Prompt) -> None:
        self._not_decoding.discard(prompt.text)
        if not self._not_decoding:
            self._all_decode.set()
