"""The servers that are measured: our HTTP side, and h11 on trio with nothing around it.

A process of its own, started as ``python -m benchmarks.http_cost.server ours`` or ``h11``. It prints its URL,
and then for every line on standard input the CPU seconds, user and system, that it has used so far.
"""

from __future__ import annotations

import os
import resource
import secrets
import sys
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from benchmarks.http_cost.answers import FINISHED, FakeEngine
from benchmarks.http_cost.bare import serve_bare
from mlxcel_trio.core.ids import IdFactory
from mlxcel_trio.core.store import StoreLimits
from mlxcel_trio.errors import InvalidRequestError, NotFoundError
from mlxcel_trio.http.app import create_app
from mlxcel_trio.http.usecases import UseCases
from mlxcel_trio.http.worker import serve_http
from mlxcel_trio.log import configure_logging
from mlxcel_trio.protocol.models import ModelList, ModelObject
from mlxcel_trio.service.conversations import Conversations
from mlxcel_trio.service.stored_responses import StoredResponses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mlxcel_trio.protocol.events import Event
    from mlxcel_trio.protocol.requests import CreateResponse
    from mlxcel_trio.protocol.responses import InputTokens, Response

OURS = "ours"
BARE = "h11"


class PreparedAnswer:
    """A :class:`mlxcel_trio.http.usecases.PreparedResponse` that the fake engine answers."""

    def __init__(self, engine: FakeEngine, request: CreateResponse) -> None:
        self._engine = engine
        self._request = request
        self.stream = bool(request.stream)
        self.background = False
        self.response_id = FINISHED.id

    def detach(self) -> Response:
        """It is never a job."""
        raise RuntimeError("Nothing runs in the background here.")

    def close(self) -> None:
        """It holds nothing."""

    @asynccontextmanager
    async def open(self, *, ping_interval: float | None) -> AsyncIterator[trio.MemoryReceiveChannel[Event]]:
        """The events; no pause between them is long enough for a ping."""
        assert ping_interval is None or ping_interval >= 1
        with self._engine.events(self._request) as events:
            yield events

    async def run(self) -> Response:
        """The answer, at once."""
        return FINISHED


class Health(Struct, frozen=True):
    """Always well."""

    ok: bool = True


class PreparedAnswers:
    """A :class:`mlxcel_trio.http.usecases.Responses` that admits everything."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    async def prepare(self, request: CreateResponse, owner: str | None) -> PreparedAnswer:  # noqa: ARG002
        """Nothing is checked."""
        return PreparedAnswer(self._engine, request)

    async def count_input_tokens(self, request: CreateResponse, owner: str | None) -> InputTokens:  # noqa: ARG002
        """Nothing is counted."""
        raise InvalidRequestError("There is no tokenizer here.")

    def models(self) -> ModelList:
        """None."""
        return ModelList(())

    def model(self, name: str) -> ModelObject:
        """None."""
        raise NotFoundError(f"No model '{name}'.", code="model_not_found")

    def health(self) -> Health:
        """See :class:`Health`."""
        return Health()


def _no_stores() -> tuple[StoredResponses, Conversations]:
    """Stores that are disabled: no request that is measured gets to one."""
    limits = StoreLimits(max_entries=0, max_bytes=0, ttl_seconds=0)
    stored = StoredResponses(limits, ephemeral_ttl_seconds=0, clock=trio.current_time)
    conversations = Conversations(
        limits,
        new_id=IdFactory(secrets.token_bytes).new,
        clock=trio.current_time,
        wall_clock=time.time,
        find_item=stored.find_item,
    )
    return stored, conversations


async def serve_ours(engine: FakeEngine, *, task_status: trio.TaskStatus[str]) -> None:
    """Our application and worker, with their defaults."""
    stored, conversations = _no_stores()
    app = create_app(UseCases(PreparedAnswers(engine), stored, conversations))
    await serve_http(app, "127.0.0.1", 0, shutdown=trio.Event(), task_status=task_status)


async def serve(name: str) -> None:
    """Serve until standard input ends."""
    engine = FakeEngine()
    servers = {OURS: serve_ours, BARE: serve_bare}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        print(await nursery.start(partial(servers[name], engine)), flush=True)
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as questions:
            async for data in questions:
                for _ in range(data.count(b"\n")):
                    print(_cpu_seconds(), flush=True)
        nursery.cancel_scope.cancel()


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Serve, logging as the real server does, to nowhere."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        configure_logging("info", "json", nowhere)
        trio.run(serve, sys.argv[1])


if __name__ == "__main__":
    main()
