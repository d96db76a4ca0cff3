"""Plays the cases of ``data/bug_cases.jsonl`` against a server of their own.

A case's ``request`` is one step, or a ``sequence`` of steps, or ``parallel`` steps, or one step with a
``concurrency``. In its strings ``$REPEAT('x', n)`` is that text n times, ``$i`` the number of a concurrent
request, and ``$2.output[0].id`` a value from the response that step 2 brought. ``engine`` is the script row
that answers, and ``client`` is what the client does instead of reading the answer to its end.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import trio
from msgspec import Struct
from support.served import EventReader, Served, checked_error, checked_response, serving_script

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from support.http_server import Client
    from support.published import Json

CASES = Path(__file__).parent.parent / "data" / "bug_cases.jsonl"
CREATE_PATHS = ("/v1/responses", "/responses")
ANSWER = {"emit": ["Hel", "lo", " there."]}
"""What answers a case that brings no engine of its own."""


class Case(Struct, frozen=True):
    """A line of the file. ``expect`` is the right answer, in words."""

    id: str
    kind: str
    symptom: str
    request: dict[str, Any]
    expect: str


class Setup(Struct, frozen=True):
    """What a case needs and does not say.

    ``rows`` answer beside its engine, ``engine`` changes keys of that, ``settings`` are the server's.
    """

    rows: tuple[dict[str, Any], ...] = ()
    engine: dict[str, Any] = {}
    context_window: int | None = None
    settings: dict[str, Any] = {}


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


class CaseRun:
    """A case that has been played, and its server, which still runs."""

    def __init__(self, case: Case, served: Served, exchanges: Sequence[Exchange]) -> None:
        self.case = case
        self.served = served
        self.exchanges = exchanges

    @property
    def only(self) -> Exchange:
        """The one exchange of the case."""
        (exchange,) = self.exchanges
        return exchange

    async def again(self, **changes: Any) -> Exchange:
        """The first step once more, with other values for these fields of its body."""
        (made,) = await self.together(changes)
        return made

    async def together(self, *changes: Json) -> list[Exchange]:
        """The first step several times at once, each time with other values for these fields."""
        first = self.exchanges[0].step
        body = {"model": "local"} if first.body is None else first.body
        steps = [Step(first.method, first.path, body | change, headers=first.headers) for change in changes]
        return await _exchange_all(self.served, steps)


def read_cases() -> list[Case]:
    """All cases, in order."""
    return [msgspec.json.decode(line, type=Case) for line in CASES.read_bytes().splitlines()]


@asynccontextmanager
async def playing(case: Case, setup: Setup) -> AsyncIterator[CaseRun]:
    """Play ``case``. In the block its server still runs."""
    rows = [*([{**case.request["engine"], **setup.engine}] if "engine" in case.request else []), *setup.rows]
    script = [msgspec.convert(row, ScriptRow) for row in rows or [ANSWER]]
    async with serving_script(*script, context_window=setup.context_window, **setup.settings) as served:
        yield CaseRun(case, served, await _play(case.request, served))


async def exchange(served: Served, step: Step) -> Exchange:
    """Send a step and read what its client reads."""
    made = Exchange(step)
    headers = {"Content-Type": "application/json", **step.headers}
    patience, satisfied = _behaviour(step.client)
    async with served.connect() as client:
        await client.send(step.method, step.path, headers=headers, body=step.content())
        with trio.move_on_after(patience):
            await _read(client, made, satisfied)
    return made


async def _play(request: Json, served: Served) -> list[Exchange]:
    if "sequence" in request:
        done: list[Exchange] = []
        for step in request["sequence"]:
            done.append(await exchange(served, _step(step, partial(_look_up, done))))
        return done
    steps = request.get("parallel") or [request] * request.get("concurrency", 1)
    numbered = [_step(step, partial(_put_number, number)) for number, step in enumerate(steps)]
    return await _exchange_all(served, numbered)


async def _exchange_all(served: Served, steps: Sequence[Step]) -> list[Exchange]:
    results: dict[int, Exchange] = {}

    async def play(number: int, step: Step) -> None:
        results[number] = await exchange(served, step)

    async with trio.open_nursery() as nursery:
        for number, step in enumerate(steps):
            nursery.start_soon(play, number, step)
    return [results[number] for number in range(len(steps))]


def _put_number(number: int, text: str) -> str:
    return text.replace("$i", str(number))


def _step(step: Json, substitute: Callable[[str], str]) -> Step:
    own = {key: value for key, value in step.items() if key not in ("engine", "concurrency")}
    return msgspec.convert(_expand(own, substitute), Step)


def _expand(value: Any, substitute: Callable[[str], str]) -> Any:
    match value:
        case str():
            repeated = re.sub(r"\$REPEAT\('(.*?)', (\d+)\)", lambda found: found[1] * int(found[2]), value)
            return substitute(repeated)
        case dict():
            return {key: _expand(member, substitute) for key, member in value.items()}
        case list():
            return [_expand(member, substitute) for member in value]
    return value


def _look_up(done: Sequence[Exchange], text: str) -> str:
    def value(found: re.Match[str]) -> str:
        node: Any = done[int(found[1]) - 1].response
        for name, index in re.findall(r"(\w+)|\[(\d+)\]", found[2]):
            node = node[name] if name else node[int(index)]
        assert isinstance(node, str)
        return node

    return re.sub(r"\$(\d+)\.([\w.\[\]]*[\w\]])", value, text)


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
    elif made.step.method == "POST" and made.step.path in CREATE_PATHS:
        checked_response(made.reply)


async def _read_events(client: Client, made: Exchange, satisfied: Callable[[Exchange], bool]) -> None:
    reader = EventReader(client)
    made.events = reader.received
    while not reader.ended:
        await reader.next()
        if satisfied(made):
            return
    await reader.rest()
