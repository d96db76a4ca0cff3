"""An engine that fails or hangs under 8 streams and 8 JSON requests, with more in the queue.

A row that fails takes nothing with it. A step that hangs fails whatever waits for it, in the engine or in the
queue, and refuses new work until it ends. What a dead engine does is shown in ``test_script_over_http.py``,
how a process ends whose engine hangs in ``test_hanging_engine.py``.
"""

from __future__ import annotations

import math
import threading
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.served import LIMIT_SECONDS, ServerClient, checked_error, http_client, text_of

from mlxcel_trio.engine.api import Engine
from mlxcel_trio.server import Model, serve_engine
from mlxcel_trio.settings import Settings
from mlxcel_trio.testing.script import Script, ScriptRow
from mlxcel_trio.testing.scripted_backend import ScriptedBackend
from mlxcel_trio.testing.scripted_tokenizer import load_scripted_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    from support.published import Json

    from mlxcel_trio.engine.api import Tokenizer
    from mlxcel_trio.engine.backend import RowEvent

STREAMS = JSON_REQUESTS = 8
DECODE_TIMEOUT = 0.5
"""No step takes longer, but for those that the test holds."""


class HeldBackend(ScriptedBackend):
    """Plays its script; each step waits until the test lets it go."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps_may_end = threading.Event()
        self.steps_may_end.set()

    def step(self) -> list[RowEvent]:
        assert self.steps_may_end.wait(LIMIT_SECONDS)
        return super().step()


class FaultyServer(ServerClient):
    """A server on a :class:`HeldBackend`."""

    def __init__(self, url: str, client: httpx.AsyncClient, backend: HeldBackend) -> None:
        super().__init__(url, client)
        self.backend = backend

    async def error(self, **fields: Any) -> tuple[int, str, str]:
        """Status, type and code of a refusal or failure."""
        reply = await self.refusal(**fields)
        error = checked_error(reply)
        return reply.status_code, error["type"], error["code"]

    async def assert_unavailable(self, state: str) -> None:
        """New work is refused, and ``/health`` says why."""
        for stream in (False, True):
            assert await self.error(stream=stream) == (503, "server_error", "engine_unavailable")
        report = await self.client.get("/health")
        assert (report.status_code, report.json()["engine"], report.json()["ok"]) == (503, state, False)


@asynccontextmanager
async def serving(
    *rows: ScriptRow, decode_timeout: float = math.inf, **settings: Any
) -> AsyncIterator[FaultyServer]:
    """The server on a script; it has to become idle and to end by its shutdown."""
    backends: list[HeldBackend] = []

    def load() -> tuple[Tokenizer, HeldBackend]:
        script = Script(rows)
        tokenizer = load_scripted_tokenizer(script)
        backends.append(HeldBackend(script, tokenizer, context_window=8192))
        return tokenizer, backends[0]

    shutdown = trio.Event()
    serve = partial(
        serve_engine,
        Settings(port=0, **settings),
        Engine(load, decode_timeout=decode_timeout),
        Model(("held",)),
        shutdown=shutdown,
    )
    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve)
            async with http_client(url) as client:
                server = FaultyServer(url, client, backends[0])
                yield server
                await server.idle()
            shutdown.set()


class Fates:
    """How the requests end that are open at the same time."""

    def __init__(self, server: FaultyServer) -> None:
        self._server = server
        self.streamed: list[Json] = []
        self.answered: list[Json] = []
        self.errors: list[tuple[int, str, str]] = []

    async def stream(self, text: str) -> None:
        """Stream to the end, ``[DONE]``."""
        self.streamed.append((await self._server.stream(input=text))[-1]["response"])

    async def create(self, text: str) -> None:
        """Ask for JSON, to be answered."""
        self.answered.append(await self._server.create(input=text))

    async def fail(self, text: str) -> None:
        """Ask for JSON, to fail."""
        self.errors.append(await self._server.error(input=text))


@pytest.mark.parametrize("emitted", [0, 3], ids=["before the first token", "after three"])
async def test_rows_that_fail_leave_the_others_alone(emitted: int) -> None:
    rows = (
        ScriptRow(when="bad", emit=("la ",) * emitted, then="raise"),
        ScriptRow(emit=("la ",) * 12),
    )
    async with serving(*rows, parallel=16) as server:
        fates = Fates(server)
        server.backend.steps_may_end.clear()
        async with trio.open_nursery() as nursery:
            for text, create in (("bad", fates.fail), ("good", fates.create)):
                for _ in range(4):
                    nursery.start_soon(fates.stream, text)
                    nursery.start_soon(create, text)
            await server.until(running=16, rows=16)
            server.backend.steps_may_end.set()
        assert await server.error(input="bad") == (500, "server_error", "server_error")
        assert text_of(await server.create(input="good")) == "la " * 12
        assert (await server.health())["engine"] == "running"

    assert fates.errors == [(500, "server_error", "server_error")] * 4
    assert [text_of(response) for response in fates.answered] == ["la " * 12] * 4
    ends = sorted((response["status"], text_of(response)) for response in fates.streamed)
    assert ends == [("completed", "la " * 12)] * 4 + [("failed", "la " * emitted)] * 4
    failed = [response for response in fates.streamed if response["status"] == "failed"]
    assert {response["error"]["code"] for response in failed} == {"server_error"}
    assert [response["usage"]["output_tokens"] for response in failed] == [emitted] * 4


async def test_a_hang_fails_all_that_wait_and_no_more_once_it_ends() -> None:
    rows = (ScriptRow(when="more", emit=("ok",)), ScriptRow(emit=("la ",), forever=True, delay=0.01))
    async with serving(*rows, decode_timeout=DECODE_TIMEOUT, parallel=12) as server:
        fates = Fates(server)
        async with trio.open_nursery() as nursery:
            for start in (fates.stream, fates.fail):
                for _ in range(6):
                    nursery.start_soon(start, "sing")
            await server.until_true(lambda now: now["rows"] == 12 and now["sampled_tokens"] >= 24)
            for start in (fates.stream, fates.fail):
                for _ in range(2):
                    nursery.start_soon(start, "too late")
            await server.until(running=12, waiting=4)
            server.backend.steps_may_end.clear()

        assert [response["status"] for response in fates.streamed] == ["failed"] * STREAMS
        assert {response["error"]["code"] for response in fates.streamed} == {"server_error"}
        assert fates.errors == [(500, "server_error", "server_error")] * JSON_REQUESTS
        texts = sorted(text_of(response) for response in fates.streamed)
        assert texts[:2] == ["", ""], "they waited for a slot"
        assert all(text.startswith("la ") for text in texts[2:]), "what was streamed is kept"
        # The slots are free, though the engine has not let go of the rows.
        held = await server.health()
        assert (held["running"], held["waiting"], held["rows"]) == (0, 0, 12)
        await server.assert_unavailable("hanging")

        server.backend.steps_may_end.set()
        await server.until(engine="running", rows=0)
        assert text_of(await server.create(input="more")) == "ok"


async def test_an_engine_that_hangs_again_and_again() -> None:
    async with serving(ScriptRow(emit=("la ", "la")), decode_timeout=DECODE_TIMEOUT) as server:
        for _ in range(2):
            server.backend.steps_may_end.clear()
            assert await server.error() == (500, "server_error", "server_error")
            await server.assert_unavailable("hanging")
            server.backend.steps_may_end.set()
            await server.until(engine="running", rows=0)
            assert text_of(await server.create()) == "la la"
