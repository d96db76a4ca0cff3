"""One HTTP request and everything that came of it, read and strictly checked."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import httpx
import trio
from msgspec import Struct
from support.served import EventReader, checked_error, checked_response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from support.http_server import Client
    from support.published import Json
    from support.served import ServerClient

RESPONSE_PATHS = {
    "POST": re.compile(r"(/v1)?/responses(/resp_\w+/cancel)?"),
    "GET": re.compile(r"(/v1)?/responses/resp_\w+"),
}
"""What answers with a response object."""


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """One HTTP request."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    raw_body: str | None = None
    raw_body_hex: str | None = None
    headers: dict[str, str] = {}
    client: str | None = None

    def content(self) -> bytes:
        """The bytes of the body."""
        if self.raw_body_hex is not None:
            return bytes.fromhex(self.raw_body_hex)
        if self.raw_body is not None:
            return self.raw_body.encode()
        return b"" if self.body is None else json.dumps(self.body).encode()


class Exchange:
    """A step and what came of it: a reply, or the events of a stream.

    All of it has been checked: bodies and events against the published models, errors for their envelope.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.reply = httpx.Response(0)
        self.events: list[Json] = []

    @property
    def answered(self) -> bool:
        """Whether it was not refused."""
        return self.reply.status_code == 200

    @property
    def types(self) -> list[str]:
        """The types of the events of what must be a stream."""
        assert self.events, f"no stream: {self.reply.status_code} {self.reply.text}"
        return [event["type"] for event in self.events]

    def of_type(self, kind: str) -> list[Json]:
        """The events of one type, ``response.`` left out, of what must be a stream."""
        assert self.events, f"no stream: {self.reply.status_code} {self.reply.text}"
        return [event for event in self.events if event["type"] == f"response.{kind}"]

    @property
    def response(self) -> Json:
        """The final response object, streamed or not."""
        assert self.reply.status_code == 200, self.reply.text
        response: Json = self.events[-1]["response"] if self.events else self.reply.json()
        return response

    def error(self, status: int) -> Json:
        """The error object of a reply with this status."""
        assert self.reply.status_code == status, self.reply.text
        return checked_error(self.reply)

    def refused(self, param: str | None = None, code: str | None = None) -> str:
        """The message of a 400 that names ``param``, where one is given, and has this ``code``."""
        error = self.error(400)
        assert error["type"] == "invalid_request_error"
        assert error["code"] == code
        assert param is None or error["param"] == param
        message: str = error["message"]
        return message


async def exchange(served: ServerClient, step: Step) -> Exchange:
    """Send a step and read what its client reads."""
    made = Exchange(step)
    headers = {"Content-Type": "application/json", **step.headers}
    patience, satisfied = _behaviour(step.client)
    async with served.connect() as client:
        await client.send(step.method, step.path, headers=headers, body=step.content())
        with trio.move_on_after(patience):
            await _read(client, made, satisfied)
    return made


def value_at(done: Mapping[int, Exchange], reference: str) -> str | None:
    """What ``2.output[0].id`` refers to in the responses so far, ``None`` if that request was refused."""
    number, _, path = reference.partition(".")
    made = done[int(number)]
    if not made.answered:
        return None
    node: Any = made.response
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        node = node[name] if name else node[int(index)]
    assert isinstance(node, str)
    return node


def _behaviour(client: str | None) -> tuple[float, Callable[[Exchange], bool]]:
    """How many seconds the client stays, and what it has to have read to go."""
    if client is None:
        return math.inf, lambda _: False
    if found := re.fullmatch(r"(?:close socket after|timeout) ([\d.]+) s", client):
        return float(found[1]), lambda _: False
    if found := re.fullmatch(r"disconnect after (\d+) events", client):
        return math.inf, lambda made: len(made.events) == int(found[1])
    if client == "close after first delta":
        return math.inf, lambda made: made.types[-1].endswith(".delta")
    raise ValueError(f"no such client: {client}")


async def _read(client: Client, made: Exchange, satisfied: Callable[[Exchange], bool]) -> None:
    head = await client.head()
    headers = [(name.decode(), value.decode()) for name, value in head.headers]
    made.reply = httpx.Response(head.status_code, headers=headers)
    if made.reply.headers.get("content-type", "").startswith("text/event-stream"):
        await _read_events(client, made, satisfied)
        return
    made.reply = httpx.Response(head.status_code, headers=headers, content=await client.chunk())
    if made.reply.status_code >= 400:
        checked_error(made.reply)
    elif _asks_for_a_response(made.step):
        checked_response(made.reply)


def _asks_for_a_response(step: Step) -> bool:
    paths = RESPONSE_PATHS.get(step.method)
    return paths is not None and paths.fullmatch(step.path.partition("?")[0]) is not None


async def _read_events(client: Client, made: Exchange, satisfied: Callable[[Exchange], bool]) -> None:
    reader = EventReader(client)
    made.events = reader.received
    while not reader.ended:
        await reader.next()
        if satisfied(made):
            return
    await reader.rest()
