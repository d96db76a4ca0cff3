"""Puts something wrong between our application and the socket: into what is heard, or what is said.

``/health`` is left alone: it is an instrument of the tests.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import trio

from mlxcel_trio import server
from mlxcel_trio.http.app import create_app
from mlxcel_trio.testing.sse import SseReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from hypercorn.typing import (
        ASGIFramework,
        ASGIReceiveCallable,
        ASGIReceiveEvent,
        ASGISendCallable,
        ASGISendEvent,
        HTTPScope,
        Scope,
    )
    from support.published import Json

COMMENT = ":"
"""The name of a frame that is a comment instead of an event."""


class Frame(NamedTuple):
    """An event of a stream under its name."""

    name: str
    event: Json

    def encode(self) -> str:
        if self.name == COMMENT:
            return ": still here\n\n"
        return f"event: {self.name}\ndata: {json.dumps(self.event)}\n\n"


class Answer:
    """A whole answer, to be changed: ``frames`` for a stream, ``body`` for anything else."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.status = status
        self.headers = headers
        self.body: Any = None
        self.frames: list[Frame] = []
        self.done = False
        kind = headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            frames = SseReader().feed(content)
            self.frames = [Frame(frame.event, json.loads(frame.data)) for frame in frames[:-1]]
            self.done = True
        elif kind == "application/json":
            self.body = json.loads(content)

    @property
    def error(self) -> Json | None:
        """The error object, if it is one."""
        error: Json | None = (self.body or {}).get("error") if self.status >= 400 else None
        return error

    @property
    def events(self) -> list[Json]:
        """The events of the stream."""
        return [frame.event for frame in self.frames]

    def events_of(self, *kinds: str) -> list[Json]:
        """The events of some types, ``response.`` left out."""
        return [event for event in self.events if event["type"].removeprefix("response.") in kinds]

    def drop(self, *kinds: str) -> None:
        """Leave out the events of some types and close the gaps in the numbers."""
        dropped = [f"response.{kind}" for kind in kinds]
        self.keep([frame for frame in self.frames if frame.name not in dropped])

    def keep(self, frames: list[Frame]) -> None:
        """Send these events, numbered anew."""
        self.frames = frames
        for number, event in enumerate(self.events):
            event["sequence_number"] = number

    def responses(self) -> Iterator[Json]:
        """Every response object in it."""
        if isinstance(self.body, dict) and self.body.get("object") == "response":
            yield self.body
        yield from (event["response"] for event in self.events if "response" in event)

    def items(self) -> Iterator[Json]:
        """Every output item in it."""
        for response in self.responses():
            yield from response["output"]
        yield from (event["item"] for event in self.events if "item" in event)

    def parts(self) -> Iterator[Json]:
        """Every part of an output item in it."""
        for item in self.items():
            yield from item["content"]
        yield from (event["part"] for event in self.events if "part" in event)

    def append(self, text: str) -> None:
        """Let every answer end in ``text``, wherever it is told."""
        for part in self.parts():
            if part["type"] == "output_text" and part["text"]:
                part["text"] += text
        for delta in self.events_of("output_text.delta")[-1:]:
            delta["delta"] += text
        for done in self.events_of("output_text.done"):
            done["text"] += text

    def encode(self) -> bytes:
        """The bytes of its body."""
        if not self.frames:
            return b"" if self.body is None else json.dumps(self.body).encode()
        return ("".join(map(Frame.encode, self.frames)) + "data: [DONE]\n\n" * self.done).encode()


class WrongServer(NamedTuple):
    """One way to be wrong, which ``cases`` report.

    ``hear`` changes the body of a request, ``say`` changes the answer, ``answer`` makes one from the request
    alone. A server that is ``deaf`` is never told that a client has left. ``settings`` and ``context_window``
    are what it is given where that matters. ``inside`` changes the server itself while its block is open.
    """

    name: str
    cases: tuple[str, ...] = ()
    hear: Callable[[Json], None] | None = None
    say: Callable[[Answer], None] | None = None
    answer: Callable[[Json], Answer] | None = None
    deaf: bool = False
    context_window: int | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    inside: Callable[[], AbstractContextManager[object]] = nullcontext


@contextmanager
def wrong(how: WrongServer) -> Iterator[None]:
    """Servers that are started in the block are wrong in this way.

    :raises ExceptionGroup: on the way out, when making them wrong failed.
    """
    failures: list[Exception] = []

    def create_wrong_app(*args: Any, **options: Any) -> ASGIFramework:
        return _WrongApp(create_app(*args, **options), how, failures)

    with mock.patch.object(server, "create_app", create_wrong_app), how.inside():
        yield
    if failures:
        raise ExceptionGroup(f"{how.name} does not work", failures)


class _WrongApp:
    """The application of a server, and how it is wrong."""

    def __init__(self, app: ASGIFramework, how: WrongServer, failures: list[Exception]) -> None:
        self._app = app
        self._how = how
        self._failures = failures

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            await self._app(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send)
        except Exception as error:
            self._failures.append(error)
            raise

    async def _serve(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        how = self._how
        if how.answer is not None:
            await _send_answer(send, how.answer(_decoded(await _whole_body(receive))))
            return
        if how.deaf:
            with trio.CancelScope(shield=True):
                await self._app(scope, partial(_receive_deaf, receive), send)
            return
        if how.hear is not None and scope["method"] == "POST":
            receive = await _changed_request(scope, receive, how.hear)
        if how.say is None:
            await self._app(scope, receive, send)
            return
        collected = _Collected()
        await self._app(scope, receive, collected.take)
        answer = collected.answer()
        how.say(answer)
        await _send_answer(send, answer)


class _Collected:
    """An answer of the real application."""

    def __init__(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._content = b""

    async def take(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            self._content += message["body"]

    def answer(self) -> Answer:
        return Answer(self._status, self._headers, self._content)


async def _receive_deaf(receive: ASGIReceiveCallable) -> ASGIReceiveEvent:
    message = await receive()
    if message["type"] == "http.disconnect":
        await trio.sleep_forever()
    return message


async def _whole_body(receive: ASGIReceiveCallable) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        more = message["more_body"]
    return body


async def _changed_request(
    scope: Any, receive: ASGIReceiveCallable, change: Callable[[Json], None]
) -> ASGIReceiveCallable:
    request = _decoded(await _whole_body(receive))
    change(request)
    body = json.dumps(request).encode()
    others = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    scope["headers"] = [*others, (b"content-length", str(len(body)).encode())]
    messages: list[ASGIReceiveEvent] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_changed() -> ASGIReceiveEvent:
        return messages.pop() if messages else await receive()

    return receive_changed


def _decoded(body: bytes) -> Json:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return request if isinstance(request, dict) else {}


async def _send_answer(send: ASGISendCallable, answer: Answer) -> None:
    content = answer.encode()
    headers = dict(answer.headers)
    if "content-length" in headers:
        headers["content-length"] = str(len(content))
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": pairs, "trailers": False})
    await send({"type": "http.response.body", "body": content, "more_body": False})
