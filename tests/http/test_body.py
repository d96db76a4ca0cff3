"""Bodies come plain or compressed, and never grow over the limit."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import trio
import zstandard
from support.fake_responses import finished
from support.http_server import CREATE, Server, serving

LIMIT = 64 * 1024


def raw_deflate(data: bytes) -> bytes:
    """Deflate without the zlib wrapper, as some clients send it."""
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def zstd_stream(data: bytes) -> bytes:
    """A frame that does not tell its content size."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


Encode = Callable[[bytes], bytes]

ENCODERS: dict[str, tuple[str, Encode]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "upper case": ("GZIP", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.compress),
    "zstd of unknown size": ("zstd", zstd_stream),
}
each_encoding = pytest.mark.parametrize(("encoding", "encode"), ENCODERS.values(), ids=ENCODERS)


def create_of(size: int) -> bytes:
    """A valid create request of exactly ``size`` bytes."""
    frame = json.dumps({"model": "tiny", "input": ""}).encode()
    return frame.replace(b'""', b'"' + b"x" * (size - len(frame)) + b'"')


async def post_input(server: Server, body: bytes, encoding: str | None) -> object:
    """The ``input`` that the service got."""
    headers = {} if encoding is None else {"Content-Encoding": encoding}
    async with server.connect() as client:
        await client.send("POST", "/v1/responses", headers=headers, body=body)
        run = await server.responses.next_run()
        run.result.send_nowait(finished())
        assert (await client.reply()).status == 200
        return run.request.input


@each_encoding
async def test_a_compressed_body_up_to_the_limit(encoding: str, encode: Encode) -> None:
    async with serving(max_body_bytes=LIMIT) as server:
        body = create_of(LIMIT)
        assert await post_input(server, encode(body), encoding) == json.loads(body)["input"]


@each_encoding
async def test_one_byte_more_is_413(encoding: str, encode: Encode) -> None:
    async with serving(max_body_bytes=LIMIT) as server:
        reply = await server.fetch(
            "POST", "/v1/responses", headers={"Content-Encoding": encoding}, body=encode(create_of(LIMIT + 1))
        )
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("encoding", [None, "identity", "", "Identity"])
async def test_plain_bodies_up_to_the_limit(encoding: str | None) -> None:
    async with serving(max_body_bytes=LIMIT) as server:
        body = create_of(LIMIT)
        assert await post_input(server, body, encoding) == json.loads(body)["input"]
        reply = await server.fetch("POST", "/v1/responses", body=create_of(LIMIT + 1))
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")


async def test_an_unannounced_length_is_limited_too() -> None:
    async with serving(max_body_bytes=LIMIT) as server:
        chunk = b"%x\r\n%s\r\n" % (LIMIT, b"x" * LIMIT)
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await server.exchange(head + 2 * chunk + b"0\r\n\r\n" + b"GET /health HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain", "nonsense"])
async def test_the_content_type_does_not_matter(content_type: str | None) -> None:
    async with serving() as server, server.connect() as client:
        headers = {} if content_type is None else {"Content-Type": content_type}
        await client.send("POST", "/v1/responses", headers=headers, body=CREATE)
        run = await server.responses.next_run()
        run.result.send_nowait(finished())
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "identity, gzip", "zip"])
async def test_other_encodings_are_415(encoding: str) -> None:
    async with serving() as server:
        reply = await server.fetch(
            "POST", "/v1/responses", headers={"Content-Encoding": encoding}, body=CREATE
        )
        assert reply.status == 415
        assert encoding in reply.error["message"]


@each_encoding
@pytest.mark.parametrize("damage", ["cut", "flipped", "trailing", "empty", "plain"])
async def test_damaged_data_is_400(encoding: str, encode: Encode, damage: str) -> None:
    data = encode(CREATE)
    body = {
        "cut": data[:-3],
        "flipped": bytes([data[0] ^ 0xFF]) + data[1:],
        "trailing": data + b"more",
        "empty": b"",
        "plain": CREATE,
    }[damage]
    async with serving() as server:
        reply = await server.fetch("POST", "/v1/responses", headers={"Content-Encoding": encoding}, body=body)
        assert reply.status == 400, reply
        assert reply.error["code"] is None


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_bomb_never_expands_in_memory(encoding: str) -> None:
    """64 MiB of zeros are 64 KiB as gzip and 6 KiB as zstd."""
    bomb = ENCODERS[encoding][1](bytes(64 * 1024 * 1024))
    async with serving(max_body_bytes=1024 * 1024) as server:
        tracemalloc.start()
        try:
            headers = {"Content-Encoding": encoding}
            reply = await server.fetch("POST", "/v1/responses", headers=headers, body=bomb)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")
        assert peak < 16 * 1024 * 1024


async def test_a_zstd_window_may_not_be_huge() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = compressor.compress(CREATE) + compressor.flush()
    async with serving() as server:
        headers = {"Content-Encoding": "zstd"}
        reply = await server.fetch("POST", "/v1/responses", headers=headers, body=body)
        assert reply.status == 400


async def test_a_body_that_does_not_arrive_is_408() -> None:
    async with serving(body_timeout=0.05) as server, server.connect() as client:
        await client.send("POST", "/v1/responses", headers={"Transfer-Encoding": "chunked"})
        await client.stream.send_all(b"")
        reply_to_complete_body = await client.reply()
        assert reply_to_complete_body.status == 400  # empty, but complete
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        await client.stream.send_all(head + b"{")
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer.lower()


async def test_an_early_answer_reaches_a_client_that_still_sends() -> None:
    """Closing with unread input makes the kernel send a reset, which takes the answer from the client."""
    async with serving(max_body_bytes=1024) as server, server.connect() as client:
        size = 8 * 1024 * 1024
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        with trio.fail_after(5):
            await client.stream.send_all(head + bytes(size))
            answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"request_too_large" in answer
