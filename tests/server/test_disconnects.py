"""A client that drops takes its work with it: its row leaves the engine by the end of the step in progress."""

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
    from support.served import EventReader

    Leave = Callable[[Client], Awaitable[None]]

SLOW_PREFILL = ScriptRow(when="prefill", prefill_delay=3600)
ENDLESS = ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01)
SHORT = ScriptRow(emit=("ok",))
NEIGHBOUR_TOKENS = 30


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
    """Another stream that runs all the while. Leaving reads it to its end, which must be as if alone."""
    async with served.open_stream(input="endless", max_output_tokens=NEIGHBOUR_TOKENS) as events:
        await events.next("response.output_text.delta")
        yield
        response = await events.rest()
    assert response["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == NEIGHBOUR_TOKENS
    assert text_of(response) == "la " * NEIGHBOUR_TOKENS


async def assert_row_left_at_once(served: Served) -> None:
    """One row was taken out of the engine, before another step began than the one in progress."""
    await served.health_until(lambda now: now["running"] <= 1 and now["rows"] <= 1)
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
            await served.health_until(lambda now: now["rows"] == 2)
            await leave(client)
            await assert_row_left_at_once(served)
        await assert_nothing_goes_on(served)


@json_and_stream
@each_way_to_leave
async def test_while_generating(leave: Leave, stream: bool) -> None:
    async with serving_script(ENDLESS) as served:
        async with requesting(served, "endless", stream=stream) as client:
            await served.health_until(lambda now: now["sampled_tokens"] >= 3)
            async with neighbour(served):
                await served.health_until(lambda now: now["rows"] == 2)
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
            await leave(client_of(events))
            await assert_row_left_at_once(served)
        await assert_nothing_goes_on(served)


def client_of(events: EventReader) -> Client:
    return events._client


@json_and_stream
@each_way_to_leave
async def test_in_the_queue(leave: Leave, stream: bool) -> None:
    """It never reaches the engine, and its place is free for the next request."""

    async def take_its_place() -> None:
        assert text_of(await served.create(input="next")) == "ok"

    async with serving_script(ENDLESS, SHORT, parallel=1, max_queue_depth=1) as served:
        async with trio.open_nursery() as nursery, neighbour(served):
            async with requesting(served, "too late", stream=stream) as client:
                await served.health_until(lambda now: now["waiting"] == 1)
                await served.refusal()
                await leave(client)
                await served.health_until(lambda now: now["waiting"] == 0)
            nursery.start_soon(take_its_place)
            await served.health_until(lambda now: now["waiting"] == 1)
        assert not any("too late" in prompt for prompt in served.engine.prompts())
        assert served.engine.removal_lags() == []


async def test_the_queue_moves_up_when_the_holder_of_the_slot_drops() -> None:
    async with serving_script(ENDLESS, SHORT, parallel=1) as served:
        async with (
            requesting(served, "endless", stream=True) as holder,
            served.open_stream(input="next") as following,
        ):
            await served.health_until(lambda now: (now["running"], now["waiting"]) == (1, 1))
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
                    await served.health_until(
                        lambda now, admitted=position + 2: now["running"] + now["waiting"] == admitted
                    )
                await served.health_until(lambda now: (now["rows"], now["waiting"]) == (4, 3))
            await served.health_until(lambda now: (now["running"], now["waiting"], now["rows"]) == (1, 0, 1))
        lags = served.engine.removal_lags()
        assert len(lags) >= 3
        assert max(lags) <= 1
        await assert_nothing_goes_on(served)
        assert text_of(await served.create(input="well?")) == "ok"
