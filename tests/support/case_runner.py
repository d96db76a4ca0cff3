"""Plays the cases of ``data/bug_cases.jsonl`` against a server of their own.

A case's ``request`` is one step, or a ``sequence`` of steps, or ``parallel`` steps, or one step with a
``concurrency`` or a ``repeat``. In its strings ``$REPEAT('x', n)`` is that text n times, ``$i`` the number of
a concurrent or repeated request, and ``$2.output[0].id`` a value from the response that step 2 brought.
``engine`` is the script row that answers, ``client`` what the client does instead of reading to the end. A
step ``{"restart": "server"}`` is none: what follows meets a new server.
"""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import Struct
from support.exchanges import Exchange, Step, exchange, value_at
from support.served import Served, serving_script

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from support.published import Json

CASES = Path(__file__).parent.parent / "data" / "bug_cases.jsonl"
RESTART = {"restart": "server"}
_OF_THE_CASE = ("engine", "concurrency", "repeat")
_REFERENCE = re.compile(r"\$(\d+\.[\w.\[\]]*[\w\]])")

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

    ``rows`` answer beside its engine, ``engine`` changes keys of that, ``settings`` are the server's. The
    fields ``without`` are left out of its bodies: what they ask for is not built. ``repeat`` is how often a
    case that repeats itself does.
    """

    rows: tuple[dict[str, Any], ...] = ()
    engine: dict[str, Any] = {}
    context_window: int | None = None
    settings: dict[str, Any] = {}
    without: tuple[str, ...] = ()
    repeat: int = 0


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

    @property
    def steps(self) -> Sequence[Exchange]:
        """All exchanges of a sequence. It breaks off where a step needs a value of one that was refused."""
        played, last = len(self.exchanges), self.exchanges[-1].reply
        meant = [step for step in self.case.request["sequence"] if step != RESTART]
        assert played == len(meant), f"breaks off behind {played} requests: {last.text}"
        return self.exchanges

    async def send(self, method: str, path: str, body: Json | None = None) -> Exchange:
        """Any other request."""
        return await exchange(self.served, Step(method, path, body))

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
    request = _without(case.request, setup.without)
    if "repeat" in request:
        request |= {"repeat": setup.repeat}
    serving = partial(serving_script, *script, context_window=setup.context_window, **setup.settings)
    done: dict[int, Exchange] = {}
    steps = dict(enumerate(request.get("sequence", ()), start=1))
    if RESTART in steps.values():
        restart = request["sequence"].index(RESTART) + 1
        async with serving() as served:
            await _play_sequence({number: steps.pop(number) for number in range(1, restart)}, served, done)
        del steps[restart]
    async with serving() as served:
        await _play_sequence(steps, served, done)
        yield CaseRun(case, served, list(done.values()) or await _play(request, served))


async def _play(request: Json, served: Served) -> list[Exchange]:
    times: int = request.get("repeat") or request.get("concurrency") or 1
    steps = request.get("parallel") or [request] * times
    numbered = [_step(step, partial(_put_number, number)) for number, step in enumerate(steps)]
    if "repeat" in request:
        return [await exchange(served, step) for step in numbered]
    return await _exchange_all(served, numbered)


async def _play_sequence(steps: Mapping[int, Json], served: Served, done: dict[int, Exchange]) -> None:
    """Play steps by their numbers and add each exchange to those that are ``done``."""
    for number, step in steps.items():
        references = _REFERENCE.findall(json.dumps(step))
        values = {reference: value_at(done, reference) for reference in references}
        known = {reference: value for reference, value in values.items() if value is not None}
        if known.keys() != values.keys():
            break
        done[number] = await exchange(served, _step(step, partial(_put_values, known)))


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
    own = {key: value for key, value in step.items() if key not in _OF_THE_CASE}
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


def _put_values(known: Mapping[str, str], text: str) -> str:
    return _REFERENCE.sub(lambda found: known[found[1]], text)


def _without(node: Any, keys: Collection[str]) -> Any:
    match node:
        case dict():
            return {key: _without(member, keys) for key, member in node.items() if key not in keys}
        case list():
            return [_without(member, keys) for member in node]
    return node
