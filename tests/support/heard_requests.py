"""Keeps what clients send, as it came over the wire."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from mlxcel_trio import server
from mlxcel_trio.http.app import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        Scope,
    )
    from support.published import Json


class Heard(NamedTuple):
    """A request; ``body`` is ``None`` where none was sent."""

    method: str
    path: str
    query: str
    body: Json | None


@contextmanager
def heard_requests() -> Iterator[list[Heard]]:
    """Everything that servers hear that are started in the block, but for ``/health``."""
    heard: list[Heard] = []

    def create_listening_app(*args: Any, **options: Any) -> ASGIFramework:
        return _ListeningApp(create_app(*args, **options), heard)

    with mock.patch.object(server, "create_app", create_listening_app):
        yield heard


class _ListeningApp:
    def __init__(self, app: ASGIFramework, heard: list[Heard]) -> None:
        self._app = app
        self._heard = heard

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            await self._app(scope, receive, send)
            return
        body = b""

        async def receive_and_keep() -> ASGIReceiveEvent:
            nonlocal body
            message = await receive()
            if message["type"] == "http.request":
                body += message["body"]
            return message

        try:
            await self._app(scope, receive_and_keep, send)
        finally:
            sent = json.loads(body) if body else None
            query = scope["query_string"].decode()
            self._heard.append(Heard(scope["method"], scope["path"], query, sent))
