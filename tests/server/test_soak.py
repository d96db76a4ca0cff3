"""Many clients that misbehave: what the server holds afterwards is what it held before.

``pytest -m long -s`` prints the figures.
"""

from __future__ import annotations

import gc
import json
import logging
import runpy
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import structlog
import trio
from support.fake_responses import finished
from support.http_server import serving
from support.resources import MEBIBYTE, Resources, ServerProcess, resources, serving_process
from support.served import EventReader, body_of, text_of

from mlxcel_trio.http.worker import WorkerLimits
from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from support.fake_responses import FakeResponses
    from support.http_server import Client

SLOTS = 8
ROUND = 20
"""Clients at once: the first ``SLOTS`` hold a slot, half of them in prefill, and the others wait."""

ROWS = (
    ScriptRow(when="prefill", prefill_delay=3600),
    ScriptRow(when="endless", emit=tuple("0123456789"), forever=True, delay=0.002),
    ScriptRow(emit=("ok",)),
)
FLAGS = ("--parallel", str(SLOTS))

FUZZ = Path(__file__).parents[1] / "http" / "test_fuzz.py"


class Dropper:
    """A client that asks for a response and leaves, with a close or with an RST."""

    def __init__(self, client: Client, *, stream: bool, reset: bool) -> None:
        self._client = client
        self._stream = stream
        self._reset = reset

    async def ask(self, text: str) -> None:
        body = json.dumps(body_of({"input": text, "stream": self._stream})).encode()
        await self._client.send("POST", "/v1/responses", body=body)

    async def read_some(self) -> None:
        """Read the beginning of the answer, as far as there is one before the end."""
        if self._stream:
            await self._client.head()
            await EventReader(self._client).next("response.output_text.delta")

    async def leave(self) -> None:
        await (self._client.reset() if self._reset else self._client.stream.aclose())


@asynccontextmanager
async def droppers(server: ServerProcess) -> AsyncIterator[list[Dropper]]:
    """One round of connected clients: JSON and streams, close and RST, in all combinations."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(server.connect()) for _ in range(ROUND)]
        yield [
            Dropper(client, stream=position % 2 == 0, reset=position % 4 < 2)
            for position, client in enumerate(clients)
        ]


async def drop_a_round(server: ServerProcess, random: Random) -> None:
    """Have one round of clients ask, see that each is where it is to be, and have all leave in any order."""
    async with droppers(server) as clients:
        in_prefill = clients[: SLOTS // 2]
        generating = clients[SLOTS // 2 : SLOTS]
        queued = clients[SLOTS:]
        before = await server.health()
        for client in in_prefill:
            await client.ask("prefill")
        for client in generating:
            await client.ask("endless")
        await server.until(running=SLOTS, rows=SLOTS)
        for client in generating:
            await client.read_some()
        await server.until_true(lambda now: now["sampled_tokens"] >= before["sampled_tokens"] + SLOTS)
        for client in queued:
            await client.ask(random.choice(["prefill", "endless"]))
        await server.until(running=SLOTS, waiting=len(queued))
        async with trio.open_nursery() as nursery:
            for client in random.sample(clients, len(clients)):
                nursery.start_soon(client.leave)
    await server.idle()


async def drop(server: ServerProcess, count: int, seed: int) -> Resources:
    """Have ``count`` clients drop; returns what the server holds when it has closed their connections."""
    random = Random(seed)  # noqa: S311
    before = server.resources()
    for _ in range(count // ROUND):
        await drop_a_round(server, random)
    while server.resources().descriptors > before.descriptors:
        await server.health()
    return server.resources()


async def assert_as_new(server: ServerProcess) -> None:
    """Nothing is held, nothing goes on, and it serves."""
    before = await server.idle()
    after = await server.health()
    assert (after["steps"], after["sampled_tokens"]) == (before["steps"], before["sampled_tokens"])
    assert text_of(await server.create()) == "ok"


async def test_sixty_clients_that_drop(tmp_path: Path) -> None:
    async with serving_process(tmp_path, *ROWS, flags=FLAGS) as server:
        await assert_as_new(server)
        before = await drop(server, ROUND, seed=1)
        after = await drop(server, 60, seed=2)
        assert after.descriptors == before.descriptors
        assert after.threads <= before.threads
        await assert_as_new(server)


@pytest.mark.long
async def test_a_thousand_clients_that_drop(tmp_path: Path) -> None:
    async with serving_process(tmp_path, *ROWS, flags=FLAGS, within=600) as server:
        await assert_as_new(server)
        before = await drop(server, 200, seed=1)
        after = await drop(server, 1000, seed=2)
        print(f"\nbefore 1,000 clients that drop: {before}\nafter: {after}")  # noqa: T201
        assert after.descriptors == before.descriptors
        assert after.threads <= before.threads
        assert after.memory - before.memory < 2 * MEBIBYTE
        await assert_as_new(server)


@pytest.fixture
def _no_logs() -> Iterator[None]:
    """What tens of thousands of lines take would be measured too."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


async def finish_runs(responses: FakeResponses) -> None:
    """Answer every request that gets through to the service."""
    while True:
        run = await responses.next_run()
        run.result.send_nowait(finished())


@pytest.mark.long
@pytest.mark.usefixtures("_no_logs")
async def test_ten_thousand_connections_of_garbage() -> None:
    """Server and clients are this process; the server lives on while it is measured."""
    send_garbage = runpy.run_path(str(FUZZ))["send_garbage"]
    limits = WorkerLimits(header_timeout=0.05, keep_alive_timeout=0.05, linger_timeout=0.05)
    async with (
        serving(limits=limits, body_timeout=0.05, within=600) as server,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(finish_runs, server.responses)
        idle = resources()

        async def send(seed: int, connections: int) -> Resources:
            async with trio.open_nursery() as clients:
                for client in range(8):
                    random = Random(f"{seed}-{client}")  # noqa: S311
                    clients.start_soon(send_garbage, server, random, connections // 8)
            while resources().descriptors > idle.descriptors:
                await trio.lowlevel.checkpoint()
            gc.collect()
            return resources()

        before = await send(1, 2_000)
        after = await send(2, 10_000)
        print(f"\nbefore 10,000 connections of garbage: {before}\nafter: {after}")  # noqa: T201
        assert after.descriptors == before.descriptors
        assert after.threads <= before.threads
        assert after.memory - before.memory < 2 * MEBIBYTE
        await server.assert_alive()
        nursery.cancel_scope.cancel()
