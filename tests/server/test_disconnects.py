"""A client that drops takes its row out of the engine by the end of the step in progress."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from support.served import Served, body_of, serving_script, text_of

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.http_server import Client

    Leave = Callable[[Client], Awaitable[None]]

SLOW_PREFILL = ScriptRow(when="prefill", prefill_delay=3600)
ENDLESS = ScriptRow(when="endless", emit=tuple("0123456789"), forever=True, delay=0.01)
SHORT = ScriptRow(emit=("ok",))


async def close(client: Client) -> None:
    await client.stream.aclose()


async def reset(client: Client) -> None:
    await client.reset()


each_way_to_leave = pytest.mark.parametrize("leave", [close, reset])
json_and_stream = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


@asynccontextmanager
async def requesting(served: Served, text: str, *, stream: bool) -> AsyncIterator[Client]:
    """A bare client that has asked for a response and reads nothing."""
    async with served.connect() as client:
        body = json.dumps(body_of({"input": text, "stream": stream})).encode()
        await client.send("POST", "/v1/responses", body=body)
        yield client


@asynccontextmanager
async def neighbour(served: Served) -> AsyncIterator[None]:
    """Another stream that runs all the while and beyond, without a hitch."""
    async with served.open_stream(input="endless") as events:
        await events.next("response.output_text.delta")
        yield
        for _ in range(5):
            await events.next("response.output_text.delta")
        deltas = [event["delta"] for event in events.received if "delta" in event]
        assert deltas == [str(position % 10) for position in range(len(deltas))]


async def assert_row_left_at_once(served: Served) -> None:
    """One row was taken out of the engine, before another step began than the one in progress."""
    await served.until_true(lambda now: now["running"] <= 1 and now["rows"] <= 1)
    (lag,) = served.engine.removal_lags()
    assert lag <= 1


async def assert_nothing_goes_on(served: Served) -> None:
    await served.engine.wait_drained()
    before = await served.idle()
    after = await served.health()
    assert (after["steps"], after["sampled_tokens"]) == (before["steps"], before["sampled_tokens"])


@json_and_stream
@each_way_to_leave
async def test_in_prefill(leave: Leave, stream: bool) -> None:
    async with serving_script(SLOW_PREFILL, ENDLESS) as served:
        async with neighbour(served), requesting(served, "prefill", stream=stream) as client:
            await served.until(rows=2)
            await leave(client)
            await assert_row_left_at_once(served)
        await assert_nothing_goes_on(served)


@json_and_stream
@each_way_to_leave
async def test_while_generating(leave: Leave, stream: bool) -> None:
    async with serving_script(ENDLESS) as served:
        async with requesting(served, "endless", stream=stream) as client:
            await served.until_true(lambda now: now["sampled_tokens"] >= 3)
            async with neighbour(served):
                await served.until(rows=2)
                await leave(client)
                await assert_row_left_at_once(served)
        await assert_nothing_goes_on(served)


@each_way_to_leave
async def test_in_mid_stream(leave: Leave) -> None:
    """The client has read some of the answer, and more is on its way."""
    async with serving_script(ENDLESS) as served:
        async with neighbour(served), served.open_stream(input="endless") as events:
            for _ in range(3):
                await events.next("response.output_text.delta")
            await leave(events.client)
            await assert_row_left_at_once(served)
        await assert_nothing_goes_on(served)


@json_and_stream
@each_way_to_leave
async def test_in_the_queue(leave: Leave, stream: bool) -> None:
    """It never reaches the engine, and its place is free for the next request."""

    async def take_its_place() -> None:
        assert text_of(await served.create(input="next")) == "ok"

    async with serving_script(ENDLESS, SHORT, parallel=1, max_queue_depth=1) as served:
        async with trio.open_nursery() as nursery, neighbour(served):
            async with requesting(served, "too late", stream=stream) as client:
                await served.until(waiting=1)
                await served.refusal()
                await leave(client)
                await served.until(waiting=0)
            nursery.start_soon(take_its_place)
            await served.until(waiting=1)
        prompts = served.engine.prompts()
        assert ["endless" in prompts[0], "next" in prompts[1], len(prompts)] == [True, True, 2]


async def test_the_queue_moves_up_when_the_holder_of_the_slot_drops() -> None:
    async with serving_script(ENDLESS, SHORT, parallel=1) as served:
        async with requesting(served, "endless", stream=True) as holder:
            await served.until(running=1)
            async with served.open_stream(input="next") as following:
                await served.until(running=1, waiting=1)
                await reset(holder)
                assert text_of(await following.rest()) == "ok"
        (lag,) = served.engine.removal_lags()
        assert lag <= 1


async def test_everybody_leaves_at_once() -> None:
    """In every stage; the server is as new afterwards."""
    texts = ["prefill", "endless", "prefill", "never served", "never served", "never served"]
    async with serving_script(SLOW_PREFILL, ENDLESS, SHORT, parallel=4) as served:
        async with neighbour(served):
            async with AsyncExitStack() as clients:
                for position, text in enumerate(texts):
                    request = requesting(served, text, stream=position % 2 == 0)
                    await clients.enter_async_context(request)
                    await served.until(running=min(position + 2, 4), waiting=max(position - 2, 0))
                await served.until(rows=4, waiting=3)
            await served.until(running=1, waiting=0, rows=1)
        lags = served.engine.removal_lags()
        assert len(lags) >= 3
        assert max(lags) <= 1
        await assert_nothing_goes_on(served)
        assert text_of(await served.create(input="well?")) == "ok"
