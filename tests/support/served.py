"""The whole server on a script, inside the test's own trio run, with clients that check every answer."""

from __future__ import annotations

import json
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import trio
from support.http_server import Client
from support.watched_engine import WatchedEngine
from support.wire import StreamChecker, check_stream, validate_response

from mlxcel_trio.server import Model, serve_engine
from mlxcel_trio.settings import Settings
from mlxcel_trio.testing.sse import SseFrame, SseReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from support.published import Json

    from mlxcel_trio.testing.script import ScriptRow

LIMIT_SECONDS = 60
"""What no test may take, the import of the tokenizer library included; no test that passes waits for it."""

ENVELOPE_KEYS = {"message", "type", "param", "code"}


class ServerClient:
    """Talks to a running server and checks what it answers; ``client`` talks to it unchecked."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self.client = client

    async def create(self, **fields: Any) -> Json:
        """Create a response without a stream; returns its checked object."""
        reply = await self.client.post("/v1/responses", json=body_of(fields))
        assert reply.status_code == 200, reply.text
        return checked_response(reply)

    async def refusal(self, **fields: Any) -> httpx.Response:
        """Create a response that is refused or fails; the envelope of the answer is checked."""
        reply = await self.client.post("/v1/responses", json=body_of(fields))
        assert reply.status_code >= 400, reply.text
        checked_error(reply)
        return reply

    async def stream(self, **fields: Any) -> list[Json]:
        """Create a response as a stream; returns its checked events."""
        async with self.open_stream(**fields) as events:
            await events.rest()
            return events.received

    @asynccontextmanager
    async def open_stream(self, **fields: Any) -> AsyncIterator[EventReader]:
        """A stream to be read event by event; leaving the block closes the connection."""
        key = self.client.headers.get("Authorization")
        headers = None if key is None else {"Authorization": key}
        body = json.dumps(body_of(fields | {"stream": True})).encode()
        async with self.connect() as client:
            await client.send("POST", "/v1/responses", headers=headers, body=body)
            head = await client.head()
            assert head.status_code == 200
            assert dict(head.headers)[b"content-type"] == b"text/event-stream; charset=utf-8"
            yield EventReader(client)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        """A bare connection."""
        url = httpx.URL(self.url)
        assert url.port is not None
        async with await trio.open_tcp_stream(url.host, url.port) as stream:
            yield Client(stream)

    async def health(self) -> Json:
        """The body of ``GET /health``."""
        report: Json = (await self.client.get("/health")).json()
        return report

    async def until(self, **figures: object) -> Json:
        """Ask for the statistics again and again until these have these values."""
        return await self.until_true(lambda now: all(now[name] == value for name, value in figures.items()))

    async def until_true(self, condition: Callable[[Json], bool]) -> Json:
        """Ask for the statistics again and again until they meet ``condition``."""
        while not condition(report := await self.health()):
            pass
        return report

    async def idle(self) -> Json:
        """Wait until nothing holds a queue place, a slot or a row."""
        return await self.until(running=0, waiting=0, rows=0)


class Served(ServerClient):
    """A server that runs in this process."""

    def __init__(self, url: str, client: httpx.AsyncClient, engine: WatchedEngine) -> None:
        super().__init__(url, client)
        self.engine = engine


class EventReader:
    """The events of one stream, read from a connection whose answer has begun.

    Each event is checked together with those before it.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._reader = SseReader()
        self._frames: deque[SseFrame] = deque()
        self._checker = StreamChecker()
        self.received: list[Json] = []

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been read."""
        return bool(self.received) and self.received[-1]["type"] in TERMINAL_EVENTS

    async def next(self, kind: str | None = None) -> Json:
        """The next event, or the next of one type."""
        while True:
            frame = await self._next_frame()
            assert frame is not None, f"the stream ends after {self.received[-1:]}"
            assert frame.data != "[DONE]", f"[DONE] after {self.received[-1:]}"
            event: Json = json.loads(frame.data)
            assert frame.event == event["type"], f"event: {frame.event}, data: {event}"
            self._checker.feed(event)
            self.received.append(event)
            if kind in (None, event["type"]):
                return event

    async def rest(self) -> Json:
        """Read to the end, which is ``[DONE]``; returns the final response."""
        while not self.ended:
            await self.next()
        assert await self._next_frame() == SseFrame("", "[DONE]")
        assert await self._next_frame() is None
        return check_stream(self.received)

    async def leave(self) -> None:
        """Close the connection."""
        await self.client.stream.aclose()

    async def _next_frame(self) -> SseFrame | None:
        while not self._frames:
            chunk = await self.client.chunk()
            self._frames += self._reader.feed(chunk)
            if not chunk:
                self._reader.finish()
                return None
        return self._frames.popleft()


TERMINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


@asynccontextmanager
async def serving_script(
    *rows: ScriptRow, context_window: int | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """A server that answers from ``rows``; ``settings`` are fields of :class:`Settings`.

    On the way out it has to become idle and to end by its shutdown.
    """
    engine = WatchedEngine(*rows, context_window=context_window)
    shutdown = trio.Event()
    serve = partial(
        serve_engine,
        Settings(port=0, **settings),
        engine,
        Model(("scripted",)),
        shutdown=shutdown,
    )
    with trio.fail_after(LIMIT_SECONDS):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve)
            async with http_client(url) as client:
                served = Served(url, client, engine)
                yield served
                await served.idle()
            shutdown.set()


def http_client(url: str) -> httpx.AsyncClient:
    """A client without a timeout, for tests that have their own."""
    return httpx.AsyncClient(base_url=url, timeout=None)  # noqa: S113


def body_of(fields: Json) -> Json:
    """The body of a create request: ``fields``, and the least that they lack."""
    return {"model": "local", "input": "hi"} | fields


def checked_response(reply: httpx.Response) -> Json:
    """The response object in an answer, after a strict check."""
    assert reply.headers["content-type"] == "application/json"
    response: Json = reply.json()
    validate_response(response)
    return response


def checked_error(reply: httpx.Response) -> Json:
    """The error object in an answer, after a check of its envelope."""
    assert reply.headers["content-type"] == "application/json"
    assert reply.json().keys() == {"error"}
    error: Json = reply.json()["error"]
    assert error.keys() == ENVELOPE_KEYS
    assert error["message"]
    assert "\n" not in error["message"]
    return error


def text_of(response: Json) -> str:
    """The answer in a response object: the text of all its messages."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def reasoning_of(response: Json) -> str:
    """The text of all its reasoning items."""
    items = [item for item in response["output"] if item["type"] == "reasoning"]
    return "".join(part["text"] for item in items for part in item["content"])
