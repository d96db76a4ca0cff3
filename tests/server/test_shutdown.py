"""A server that is told to stop while it answers: what it lets finish, and how it takes leave of the rest."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from structlog.testing import capture_logs
from support.resources import serving_process
from support.served import LIMIT_SECONDS, ServerClient, checked_error, http_client, text_of

from mlxcel_trio.server import Model, serve_engine
from mlxcel_trio.settings import Settings
from mlxcel_trio.testing.script import Script, ScriptRow
from mlxcel_trio.testing.scripted_backend import scripted_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from support.http_server import Client
    from support.published import Json

SONG = "la " * 40
ROWS = (
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(when="prefill", prefill_delay=3600),
    ScriptRow(emit=("la ",) * 40, delay=0.01),
)


class Stopping:
    """A server, and what tells it to stop."""

    def __init__(self, server: ServerClient, stop: Callable[[], None], ended: trio.Event) -> None:
        self.server = server
        self.stop = stop
        self.ended = ended


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Stopping]:
    """A server in this process. It has to be told to stop in the block, and to end, without an error."""
    shutdown, ended = trio.Event(), trio.Event()
    engine = scripted_engine(Script(ROWS))

    async def serve(*, task_status: trio.TaskStatus[str]) -> None:
        await serve_engine(
            Settings(port=0, **settings),
            engine,
            Model(("scripted",)),
            shutdown=shutdown,
            task_status=task_status,
        )
        ended.set()

    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve)
            async with http_client(url) as client:
                yield Stopping(ServerClient(url, client), shutdown.set, ended)
            await ended.wait()
    assert (engine.statistics().state, engine.statistics().rows) == ("stopped", 0)


class Fates:
    """How the requests end that are open when the server is told to stop."""

    def __init__(self, server: ServerClient) -> None:
        self._server = server
        self.streamed: list[Json] = []
        self.answered: list[Json] = []
        self.errors: list[tuple[int, str, str]] = []

    async def stream(self, text: str) -> None:
        """Stream to ``[DONE]`` and to the end of the connection after it."""
        async with self._server.open_stream(input=text) as events:
            self.streamed.append(await events.rest())
            assert await events.client.rest() == b""

    async def create(self, text: str) -> None:
        """Ask for JSON, to be answered."""
        self.answered.append(await self._server.create(input=text))

    async def fail(self, text: str) -> None:
        """Ask for JSON, to fail."""
        reply = await self._server.refusal(input=text)
        error = checked_error(reply)
        self.errors.append((reply.status_code, error["type"], error["code"]))


async def keep_alive(server: ServerClient, stack: AsyncExitStack, count: int) -> list[Client]:
    """Connections that have been used and are idle now."""
    clients = [await stack.enter_async_context(server.connect()) for _ in range(count)]
    for client in clients:
        await client.send("GET", "/health")
        assert (await client.reply()).status == 200
    return clients


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """Kept from the screen: to lay out tracebacks for it would take longer than there is to say good-bye."""
    with capture_logs():
        yield


async def test_what_runs_may_finish_while_idle_connections_end_at_once() -> None:
    async with serving(graceful_timeout=LIMIT_SECONDS, keep_alive_timeout=LIMIT_SECONDS, parallel=4) as run:
        fates = Fates(run.server)
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            idle = await keep_alive(run.server, stack, 3)
            endless = await stack.enter_async_context(run.server.open_stream(input="endless"))
            for _ in range(3):
                nursery.start_soon(fates.stream, "song")
            await run.server.until(running=4)
            nursery.start_soon(fates.stream, "song")
            nursery.start_soon(fates.create, "song")
            await run.server.until(running=4, waiting=2)
            run.stop()
            for client in idle:
                assert await client.rest() == b""
            for _ in range(100):  # none of the others is held up by that, or cut
                await endless.next("response.output_text.delta")
            await endless.leave()
            with pytest.raises(OSError, match="connect"):
                async with run.server.connect():
                    pass
        assert [(response["status"], text_of(response)) for response in fates.streamed] == [
            ("completed", SONG)
        ] * 4
        assert [text_of(response) for response in fates.answered] == [SONG]


async def test_what_still_runs_at_the_end_of_the_grace_period_is_told() -> None:
    async with serving(graceful_timeout=2, parallel=5) as run:
        fates = Fates(run.server)
        async with trio.open_nursery() as nursery:
            for text in ("endless", "endless", "prefill"):
                nursery.start_soon(fates.stream, text)
            nursery.start_soon(fates.fail, "endless")
            nursery.start_soon(fates.fail, "prefill")
            await run.server.until_true(lambda now: now["running"] == 5 and now["sampled_tokens"] >= 6)
            nursery.start_soon(fates.stream, "it waits for a slot")
            nursery.start_soon(fates.fail, "it waits for a slot")
            await run.server.until(running=5, waiting=2)
            started = trio.current_time()
            run.stop()
        await run.ended.wait()
        assert trio.current_time() - started > 1  # not before the time to say so had come
    assert [response["status"] for response in fates.streamed] == ["failed"] * 4
    assert {response["error"]["code"] for response in fates.streamed} == {"server_error"}
    assert all("shutting down" in response["error"]["message"] for response in fates.streamed)
    assert [text_of(response).startswith("la ") for response in fates.streamed].count(True) == 2
    assert fates.errors == [(500, "server_error", "server_error")] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_process_that_gets_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """What fits into the grace period is finished, the rest is told, and the process ends with 0."""
    flags = ("--graceful-timeout", "2", "--parallel", "5")
    async with serving_process(tmp_path, *ROWS, flags=flags) as server:
        fates = Fates(server)
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            idle = await keep_alive(server, stack, 1)
            for text in ("song", "endless", "prefill"):
                nursery.start_soon(fates.stream, text)
            nursery.start_soon(fates.create, "song")
            nursery.start_soon(fates.fail, "endless")
            await server.until(running=5, rows=5)
            server.send_signal(number)
            assert await idle[0].rest() == b""
        assert await server.exit_code() == 0
    assert [response["status"] for response in fates.streamed] == ["completed", "failed", "failed"]
    assert text_of(fates.streamed[0]) == text_of(fates.answered[0]) == SONG
    assert fates.errors == [(500, "server_error", "server_error")]
