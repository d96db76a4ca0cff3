"""Bytes that nobody means: the server answers or hangs up, and goes on."""

from __future__ import annotations

import gc
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from support.http_server import CREATE, Server, open_descriptors, serving

from mlxcel_trio.http.worker import WorkerLimits

if TYPE_CHECKING:
    from support.fake_responses import FakeResponses

SEEDS = [
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.0\r\n\r\n",
    b"HEAD /v1/models/org/tiny HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(CREATE), CREATE),
    b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    b"%x\r\n%s\r\n0\r\n\r\n" % (len(CREATE), CREATE),
    b"DELETE /v1/responses/resp_1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/conversations/conv_1/items?order=asc&limit=5&after=msg_1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b'POST /v1/conversations HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"metadata":null}',
    (
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x81\x05hello"
    ),
    (
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    ),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
]


def garbage(random: Random) -> bytes:
    """Noise, or a few requests with a few bytes changed, dropped or put in."""
    if random.random() < 0.2:
        return random.randbytes(random.randrange(1, 300))
    data = bytearray(b"".join(random.choices(SEEDS, k=random.randrange(1, 4))))
    for _ in range(random.randrange(5)):
        at = random.randrange(len(data) or 1)
        change = random.randrange(3)
        if change == 0:
            data[at : at + 1] = random.randbytes(1)
        elif change == 1:
            del data[at : at + random.randrange(1, 9)]
        else:
            data[at:at] = random.randbytes(random.randrange(1, 9))
    return bytes(data)


async def send_garbage(server: Server, random: Random, connections: int) -> None:
    """Send some, piecemeal or at once, and leave early or late."""
    for _ in range(connections):
        async with server.connect() as client:
            data = garbage(random)
            size = random.choice([1 + len(data) // 3, len(data) + 1])
            try:
                for start in range(0, len(data), size):
                    await client.stream.send_all(data[start : start + size])
                leave = random.randrange(4)
                if leave == 1:
                    await client.stream.send_eof()
                elif leave == 2:
                    await client.reset()
                elif leave == 3:
                    await client.stream.receive_some()
            except trio.BrokenResourceError:
                continue  # the server hung up first


async def refuse_runs(responses: FakeResponses) -> None:
    """End every run that a request got through to."""
    while True:
        run = await responses.next_run()
        run.result.send_nowait(RuntimeError("not now"))


async def fuzz(seed: int, connections: int) -> None:
    limits = WorkerLimits(header_timeout=0.05, keep_alive_timeout=0.05, linger_timeout=0.05)
    async with (
        serving(limits=limits, body_timeout=0.05, within=600) as server,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(refuse_runs, server.responses)
        gc.collect()
        before = open_descriptors()
        async with trio.open_nursery() as clients:
            for client in range(8):
                clients.start_soon(send_garbage, server, Random(f"{seed}-{client}"), connections // 8)  # noqa: S311
        await server.assert_alive()
        server.shutdown.set()
        await server.stopped.wait()
        assert open_descriptors() < before
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(2))
async def test_some_hundred_connections(seed: int) -> None:
    """Fault 1 (c): the stock worker is gone after about 40 of these, on an exception of its protocol that
    cancels the nursery of the server.
    """
    await fuzz(seed, 240)


@pytest.mark.long
async def test_ten_thousand_connections() -> None:
    await fuzz(99, 10_000)
