"""The service room on a fake engine: the test is the client, the engine and, with a mock clock, the time."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import trio
import trio.testing
from support.emission import counting_ids, decoded
from support.wire import check_stream, validate_response

from mlxcel_trio.core.admission import Admission
from mlxcel_trio.core.jobs import ActiveJobs
from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.core.store import StoreLimits
from mlxcel_trio.protocol.codec import decode, encode
from mlxcel_trio.protocol.conversations import CreateConversation, CreateItems, UpdateConversation
from mlxcel_trio.protocol.requests import CreateResponse
from mlxcel_trio.service.admission import Slots
from mlxcel_trio.service.conversations import Conversations
from mlxcel_trio.service.jobs import Jobs
from mlxcel_trio.service.responses import Responses, ServedModel
from mlxcel_trio.service.stored_responses import StoredResponses
from mlxcel_trio.testing.fake_engine import FakeEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.published import Json

    from mlxcel_trio.protocol.events import Event
    from mlxcel_trio.protocol.lists import ItemList
    from mlxcel_trio.service.pipeline import ResponseRun
    from mlxcel_trio.testing.fake_engine import FakeSequence

LIMITS = StoreLimits(max_entries=100, max_bytes=10_000_000, ttl_seconds=3600)
WALL_TIME = 7.9

End = Literal["stop", "length", "fail", "nothing"]
"""How a sequence ends, if it does."""


def limits(*, max_entries: int = 100, max_bytes: int = 10_000_000, ttl_seconds: float = 3600) -> StoreLimits:
    """Bounds of a store that nothing reaches but what the test sets low."""
    return StoreLimits(max_entries=max_entries, max_bytes=max_bytes, ttl_seconds=ttl_seconds)


class ServiceBench:
    """The use cases of a server without background mode. Requests are given by their fields."""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        *,
        slots: int = 2,
        depth: int = 8,
        responses: StoreLimits = LIMITS,
        conversations: StoreLimits = LIMITS,
    ) -> None:
        self.engine = FakeEngine() if engine is None else engine
        self.slots = Slots(Admission(slots, depth))
        new_id = counting_ids()
        self.stored = StoredResponses(responses, ephemeral_ttl_seconds=60, clock=trio.current_time)
        self.conversations = Conversations(
            conversations,
            new_id=new_id,
            clock=trio.current_time,
            wall_clock=lambda: WALL_TIME,
            find_item=self.stored.find_item,
        )
        self.responses = Responses(
            self.engine,
            ServedModel({"fake": "fake"}, frozenset(), SamplingDefaults(), created=1),
            self.slots,
            self.stored,
            self.conversations,
            Jobs(),
            active_jobs=ActiveJobs(max_jobs=0, max_bytes=0),
            new_id=new_id,
            wall_clock=lambda: WALL_TIME,
        )

    def assert_idle(self) -> None:
        """Nobody holds a queue place, a slot or a row."""
        assert (self.slots.running, self.slots.waiting, self.engine.statistics().rows) == (0, 0, 0)

    # Creating

    async def prepare(self, owner: str | None = None, **fields: Any) -> ResponseRun:
        """An admitted response; see :func:`create_request`."""
        return await self.responses.prepare(create_request(**fields), owner)

    async def count(self, owner: str | None = None, **fields: Any) -> int:
        """What ``input_tokens`` answers."""
        counted = await self.responses.count_input_tokens(create_request(**fields), owner)
        return counted.input_tokens

    async def answer(self, *chunks: str, end: End = "stop", owner: str | None = None, **fields: Any) -> Json:
        """Create a response and generate it to its end; the final object, after every check."""
        run = await self.prepare(owner, **fields)
        async with open_run(run) as results:
            play(await self.engine.next_sequence(), *chunks, end=end)
        return results[0]

    def prompt(self, index: int = -1) -> list[str]:
        """The turns of a rendered prompt, by default the last one's, as "role: text"."""
        tokenizer = self.engine.fake_tokenizer
        return [tokenizer.token_bytes(token).decode() for token in self.engine.sequences[index].row.prompt]

    async def end(
        self, run: ResponseRun, sequence: FakeSequence, *chunks: str, how: End | Literal["cancel"]
    ) -> None:
        """Let an open response say ``chunks`` and end that way."""
        if how == "cancel":
            play(sequence, *chunks, end="nothing")
            await trio.testing.wait_all_tasks_blocked()
            self.cancel(run.response_id)
        else:
            play(sequence, *chunks, end=how)

    # What is stored

    def retrieve(self, response_id: str, owner: str | None = None) -> Json:
        """A response as a client gets it."""
        return read(self.stored.retrieve(owner, response_id))

    def cancel(self, response_id: str, owner: str | None = None) -> Json:
        """The same, from a cancel."""
        return read(self.stored.cancel(owner, response_id))

    def create_conversation(self, owner: str | None = None, **fields: Any) -> Json:
        """A new conversation."""
        return read(self.conversations.create(owner, decode(json_of(fields), CreateConversation)))

    def update_conversation(self, conversation_id: str, owner: str | None = None, **fields: Any) -> Json:
        """Change its metadata."""
        update = decode(json_of(fields), UpdateConversation)
        return read(self.conversations.update(owner, conversation_id, update))

    def add_items(self, conversation_id: str, *items: Json, owner: str | None = None) -> Json:
        """Append items; the list of them."""
        request = decode(json_of({"items": items}), CreateItems)
        return listed(self.conversations.create_items(owner, conversation_id, request))

    def items(self, conversation_id: str, owner: str | None = None) -> list[Json]:
        """All items of a conversation of at most 100, oldest first."""
        page = self.conversations.list_items(owner, conversation_id, {"order": "asc", "limit": "100"})
        data: list[Json] = listed(page)["data"]
        return data

    def texts(self, conversation_id: str, owner: str | None = None) -> list[str]:
        """What its messages say, as "role: text"."""
        return [f"{item['role']}: {text_of(item)}" for item in self.items(conversation_id, owner)]


def create_request(**fields: Any) -> CreateResponse:
    """A create request as it is decoded: a stream that says hi, unless the fields say otherwise."""
    return decode(json_of({"model": "fake", "input": "hi", "stream": True} | fields), CreateResponse)


def play(sequence: FakeSequence, *chunks: str, end: End = "stop") -> None:
    """All that the engine does for one sequence, at once."""
    sequence.prefill()
    if end == "length":
        sequence.say(*chunks, finish="length")
        return
    sequence.say(*chunks)
    if end == "fail":
        sequence.fail()
    elif end == "stop":
        sequence.stop()


@asynccontextmanager
async def open_run(run: ResponseRun) -> AsyncIterator[list[Json]]:
    """Let a client wait for the answer. The final object is in the list when the block has been left."""
    results: list[Json] = []

    async def wait() -> None:
        results.append(final(await collect(run)) if run.stream else checked(encode(await run.run())))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        yield results


async def collect(run: ResponseRun, ping_interval: float | None = None) -> list[Event]:
    """All events of a run."""
    async with run.open(ping_interval=ping_interval) as events:
        return [event async for event in events]


def final(events: list[Event]) -> Json:
    """The final response of a stream that satisfies every rule."""
    return check_stream(decoded(events))


def checked(body: bytes) -> Json:
    """A response object that satisfies every rule."""
    response = read(body)
    validate_response(response)
    return response


def read(body: bytes) -> Json:
    """An object of the API."""
    value: Json = json.loads(body)
    return value


def listed(page: ItemList) -> Json:
    """A page of items."""
    return read(encode(page))


def json_of(fields: Json) -> bytes:
    """A request body."""
    return json.dumps(fields).encode()


def message(text: str | list[Json], role: str = "user", **fields: Any) -> Json:
    """An item of a request; its content is a text or parts."""
    return {"type": "message", "role": role, "content": text} | fields


def text_of(item: Json) -> str:
    """The text of a message, as it is listed."""
    return "".join(part["text"] for part in item["content"])


def texts(response: Json) -> list[tuple[str, str, str]]:
    """Type, status and text of every item that a response has."""
    return [(item["type"], item["status"], text_of(item)) for item in response["output"]]
