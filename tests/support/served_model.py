"""The whole server on a real model, inside the test's own trio run."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import Struct
from support.served import ServerClient, http_client

from mlxcel_trio.engine.models import ModelSource
from mlxcel_trio.server import serve
from mlxcel_trio.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TINY_MODEL = Path(__file__).parent.parent / "tiny_model"


class Trace(Struct, frozen=True):
    """A dialogue that the tiny model has learnt by heart; ``answer`` is the text it generates."""

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    chat_template_kwargs: dict[str, Any]
    answer: str

    @property
    def body(self) -> dict[str, Any]:
        """The create request that asks for the answer; for traces without tools."""
        return {
            "input": self.messages,
            "chat_template_kwargs": self.chat_template_kwargs,
            "temperature": 0,
        }


def tiny_traces() -> list[Trace]:
    """All traces of the tiny model."""
    return msgspec.convert(json.loads((TINY_MODEL / "traces.json").read_text()), list[Trace])


@asynccontextmanager
async def serving_model(
    directory: Path = TINY_MODEL, *, limit_seconds: float = 120, **settings: Any
) -> AsyncIterator[ServerClient]:
    """A server on the model in ``directory``; ``settings`` are fields of :class:`Settings`.

    On the way out it has to become idle and to end by its shutdown.
    """
    shutdown = trio.Event()
    source = ModelSource(directory, str(directory), directory.name, (directory.name,))
    start = partial(serve, Settings(port=0, **settings), model=source, shutdown=shutdown)
    with trio.fail_after(limit_seconds):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(start)
            async with http_client(url) as client:
                served = ServerClient(url, client)
                yield served
                await served.idle()
            shutdown.set()
