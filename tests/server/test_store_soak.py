"""A hundred thousand stored responses pass through a server: its memory and its answering times stay bounded.

``pytest -m long -s`` prints the figures.
"""

from __future__ import annotations

import json
import time
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
import trio
from support.processes import line_of, python, running, tell
from support.resources import MEBIBYTE, ServerProcess
from support.served import body_of, http_client

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx
    from support.http_server import Client, Reply

    Json = dict[str, Any]

pytestmark = pytest.mark.long

BUDGET = 16 * MEBIBYTE
RESPONSES = 100_000
CONNECTIONS = 16
SESSION = 500
"""Requests on one connection; after 1,000 the server would close it."""
ROUND = 5_000
LONGEST_CHAIN = 8
PATIENCE_SECONDS = 1200

STORED_COUNTS = (100, 1_000, 10_000)
BLOCKS = 20
GETS_PER_BLOCK = 100

ROWS = (
    ScriptRow(when="long answer", emit=("All work and no play makes a dull answer. " * 500,)),
    ScriptRow(when="paragraph", emit=("A paragraph takes a few hundred bytes of memory. " * 12,)),
    ScriptRow(emit=("ok",)),
)

SERVER = """
import sys
import threading

from mlxcel_trio import server
from mlxcel_trio.service.stored_responses import StoredResponses
from mlxcel_trio.testing.__main__ import main

made = []


class WatchedResponses(StoredResponses):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.most_bytes = 0
        made.append(self)

    def keep(self, *args, **kwargs):
        super().keep(*args, **kwargs)
        self.most_bytes = max(self.most_bytes, self.retained_bytes)


def answer_questions():
    for _ in sys.stdin:
        (stored,) = made
        print(len(stored), stored.retained_bytes, stored.most_bytes, flush=True)


server.StoredResponses = WatchedResponses
threading.Thread(target=answer_questions, daemon=True).start()
sys.exit(main())
"""
"""``python -m mlxcel_trio.testing`` which tells, for every line it gets, what it has stored."""


class Retained(NamedTuple):
    """What a store holds, and the most bytes that it held when a response had been stored."""

    responses: int
    bytes: int
    most_bytes: int


class WatchedServer(ServerProcess):
    """A server whose store can be looked into."""

    def __init__(self, url: str, client: httpx.AsyncClient, process: subprocess.Popen[str]) -> None:
        super().__init__(url, client, process)
        self._questions = process

    async def retained(self) -> Retained:
        """What its store holds now."""
        tell(self._questions)
        line = await trio.to_thread.run_sync(line_of, self._questions)
        return Retained(*map(int, line.split()))


@asynccontextmanager
async def serving_watched(directory: Path, **limits: int) -> AsyncIterator[WatchedServer]:
    """A server on ``ROWS``, a process of its own; ``limits`` are those of its response store."""
    script = directory / "script.jsonl"
    script.write_bytes(b"\n".join(map(msgspec.json.encode, ROWS)))
    flags = [part for name, value in limits.items() for part in (f"--responses-store-{name}", value)]
    arguments = ("--script", script, "--port", 0, "--log-level", "error", "--parallel", CONNECTIONS, *flags)
    with running(python(SERVER, *arguments, stderr=None)) as process, trio.fail_after(PATIENCE_SECONDS):
        url = await trio.to_thread.run_sync(line_of, process)
        async with http_client(url) as client:
            yield WatchedServer(url, client, process)


class Writer:
    """Makes responses of mixed sizes, about half of them in chains, and looks at some of them again."""

    def __init__(self, seed: object) -> None:
        self._random = Random(str(seed))  # noqa: S311
        self._previous: str | None = None
        self._chained = 0
        self.ids: deque[str] = deque(maxlen=50)

    async def write(self, client: Client, count: int, *, store: bool) -> None:
        """Make ``count`` responses on one connection."""
        for _ in range(count):
            fields = self._fields()
            body = await _create(client, fields | {"store": store})
            if store:
                self._remember(body["id"], chainable="long answer" not in fields["input"])
                if self._random.random() < 0.02:
                    assert (await _get(client, body["id"])).json == body

    def _fields(self) -> Json:
        fields: Json = {"input": f"Number {self._random.random()}. "}
        size = self._random.random()
        if size < 0.03:
            fields["input"] += "Give a long answer."
        elif size < 0.2:
            fields["input"] += "Write a paragraph."
        elif size < 0.3:
            fields["input"] += "word " * self._random.randrange(200)
        if self._random.random() < 0.1:
            fields["metadata"] = {f"key {number}": "m" * 500 for number in range(self._random.randrange(16))}
        if self._previous is not None:
            fields["previous_response_id"] = self._previous
        return fields

    def _remember(self, response_id: str, *, chainable: bool) -> None:
        self.ids.append(response_id)
        self._chained += 1
        goes_on = chainable and self._chained < LONGEST_CHAIN and self._random.random() < 0.7
        self._previous = response_id if goes_on else None
        self._chained *= goes_on


async def _create(client: Client, fields: Json) -> Json:
    await client.send("POST", "/v1/responses", body=json.dumps(body_of(fields)).encode())
    reply = await client.reply()
    assert reply.status == 200, reply.body
    body: Json = reply.json
    assert body["status"] == "completed"
    return body


async def _get(client: Client, response_id: str) -> Reply:
    await client.send("GET", f"/v1/responses/{response_id}")
    reply = await client.reply()
    assert reply.status == 200, reply.body
    return reply


async def _write(server: ServerProcess, writer: Writer, count: int, *, store: bool = True) -> None:
    while count:
        session = min(count, SESSION)
        async with server.connect() as client:
            await writer.write(client, session, store=store)
        count -= session


async def _write_all(server: ServerProcess, writers: list[Writer], count: int, *, store: bool = True) -> None:
    """Make ``count`` responses, the writers all at once."""
    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(partial(_write, server, writer, count // len(writers), store=store))


async def test_a_hundred_thousand_stored_responses(tmp_path: Path) -> None:
    writers = [Writer(number) for number in range(CONNECTIONS)]
    limits = {"max-bytes": BUDGET, "max-entries": 10 * RESPONSES}
    async with serving_watched(tmp_path, **limits) as server:
        await _write_all(server, writers, 2_000, store=False)
        before = server.resources()
        async with server.connect() as client:
            first = await _create(client, {})
        above: list[float] = []
        counts: list[int] = []
        started = time.perf_counter()
        for _ in range(RESPONSES // ROUND):
            await _write_all(server, writers, ROUND)
            retained = await server.retained()
            above.append((server.resources().memory - before.memory) / MEBIBYTE)
            counts.append(retained.responses)
        seconds = time.perf_counter() - started
        after = server.resources()
        print(  # noqa: T201
            f"\n{RESPONSES} responses in {seconds:.0f} s, {1000 * seconds / RESPONSES:.2f} ms each\n"
            f"before: {before}\nafter: {after}\n"
            f"MiB above before, after each round: {' '.join(f'{now:.1f}' for now in above)}\n"
            f"stored after each round: {min(counts)} to {max(counts)}\n"
            f"most bytes counted: {retained.most_bytes / MEBIBYTE:.3f} of {BUDGET / MEBIBYTE:.0f} MiB"
        )
        assert retained.most_bytes <= BUDGET
        assert retained.bytes > BUDGET * 0.9
        assert max(counts) < ROUND, "every round turns the store over"
        assert max(above) < 2 * BUDGET / MEBIBYTE
        half = len(above) // 2
        assert max(above[half:]) - max(above[:half]) < 4, "80 bytes of each response"
        assert after.threads <= before.threads
        await _check_the_oldest_went(server, first["id"], writers)


async def _check_the_oldest_went(server: ServerProcess, first: str, writers: list[Writer]) -> None:
    assert (await server.client.get(f"/v1/responses/{first}")).status_code == 404
    async with server.connect() as client:
        for writer in writers:
            for response_id in writer.ids:
                await _get(client, response_id)


async def test_a_get_takes_as_long_with_ten_thousand_stored(tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:
        libraries = []
        for count in STORED_COUNTS:
            directory = tmp_path / str(count)
            directory.mkdir()
            server = await opened.enter_async_context(serving_watched(directory, **{"max-entries": 100_000}))
            libraries.append(await Library.fill(server, count))
        random = Random(1)  # noqa: S311
        for _ in range(BLOCKS):
            for library in libraries:
                await library.read(random)
    print()  # noqa: T201
    for library in libraries:
        print(library)  # noqa: T201
    fewest, *_, most = libraries
    assert median(most.seconds) < 1.5 * median(fewest.seconds)
    assert most.p99 < 4 * fewest.p99


class Library:
    """A server with a number of stored responses, and how long it took to get some of them."""

    def __init__(self, server: ServerProcess, ids: list[str]) -> None:
        self._server = server
        self._ids = ids
        self.seconds: list[float] = []

    @classmethod
    async def fill(cls, server: WatchedServer, count: int) -> Library:
        ids: list[str] = []

        async def add(share: int) -> None:
            while share:
                async with server.connect() as client:
                    for _ in range(session := min(share, SESSION)):
                        ids.append((await _create(client, {}))["id"])
                share -= session

        async with trio.open_nursery() as nursery:
            for number in range(CONNECTIONS):
                nursery.start_soon(add, len(range(number, count, CONNECTIONS)))
        assert (await server.retained()).responses == len(ids) == count
        return cls(server, ids)

    async def read(self, random: Random) -> None:
        """Get some responses, one after the other."""
        async with self._server.connect() as client:
            for response_id in random.choices(self._ids, k=GETS_PER_BLOCK):
                started = time.perf_counter()
                await _get(client, response_id)
                self.seconds.append(time.perf_counter() - started)

    @property
    def p99(self) -> float:
        """Seconds that 99 of 100 took at most."""
        return quantiles(self.seconds, n=100)[98]

    def __str__(self) -> str:
        figures = f"median {1000 * median(self.seconds):.2f} ms, p99 {1000 * self.p99:.2f} ms"
        return f"GET with {len(self._ids)} stored: {figures}"
