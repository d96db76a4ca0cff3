"""Request bodies: reading them whole and undoing their content-encoding, both up to a limit.

A compressed body is bounded twice, as sent and as decompressed. Decompression stops as soon as the limit is
passed, so a small body that expands without end costs little memory.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import zstandard
from werkzeug.exceptions import RequestEntityTooLarge

from mlxcel_trio.errors import InvalidRequestError, RequestTooLargeError, UnsupportedEncodingError

if TYPE_CHECKING:
    from quart import Request

GZIP = 16 + zlib.MAX_WBITS
ZLIB = zlib.MAX_WBITS
RAW_DEFLATE = -zlib.MAX_WBITS

# RFC 8878, 3.1.1.1.2: decoders should support windows of up to 8 MiB.
ZSTD_MAX_WINDOW = 8 * 1024 * 1024
# The decompressor of one zstd step is unbounded; 4 bytes can stand for a block of 128 KiB, so a step of 256
# bytes yields at most 8 MiB.
ZSTD_STEP = 256


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body, decompressed.

    :raises RequestTooLargeError: over ``max_bytes``, as sent or decompressed.
    :raises UnsupportedEncodingError: a content-encoding other than identity, gzip, deflate and zstd.
    :raises InvalidRequestError: compressed data that is damaged or cut short.
    :raises werkzeug.exceptions.RequestTimeout: the body did not arrive within the app's ``BODY_TIMEOUT``.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower() or "identity"
    if encoding not in _DECODERS:
        raise UnsupportedEncodingError(
            f"Content-Encoding '{encoding}' is not supported. Use gzip, deflate or zstd, or send plain JSON."
        )
    try:
        body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    except RequestEntityTooLarge:
        raise _too_large(max_bytes) from None
    decode = _DECODERS[encoding]
    return body if decode is None else decode(body, max_bytes)


def _gunzip(body: bytes, max_bytes: int) -> bytes:
    return _inflate(body, max_bytes, GZIP)


def _undeflate(body: bytes, max_bytes: int) -> bytes:
    # "deflate" means zlib (RFC 9110, 8.4.1.2), but some clients send raw deflate data.
    has_zlib_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflate(body, max_bytes, ZLIB if has_zlib_header else RAW_DEFLATE)


def _inflate(body: bytes, max_bytes: int, window_bits: int) -> bytes:
    decompressor = zlib.decompressobj(window_bits)
    try:
        plain = decompressor.decompress(body, max_bytes + 1)
    except zlib.error:
        raise _corrupt() from None
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    if not decompressor.eof or decompressor.unused_data:
        raise _corrupt()
    return plain


def _unzstd(body: bytes, max_bytes: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW).decompressobj()
    pieces: list[bytes] = []
    size = 0
    view = memoryview(body)
    for start in range(0, len(body), ZSTD_STEP):
        if decompressor.eof:
            raise _corrupt()
        try:
            pieces.append(decompressor.decompress(view[start : start + ZSTD_STEP]))
        except zstandard.ZstdError:
            raise _corrupt() from None
        size += len(pieces[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
    if not decompressor.eof or decompressor.unused_data:
        raise _corrupt()
    return b"".join(pieces)


_DECODERS = {
    "identity": None,
    "gzip": _gunzip,
    "x-gzip": _gunzip,  # RFC 9110, 8.4.1.3: to be treated as gzip
    "deflate": _undeflate,
    "zstd": _unzstd,
}


def _too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The request body is larger than {max_bytes} bytes, as sent or decompressed. Send less at once."
    )


def _corrupt() -> InvalidRequestError:
    return InvalidRequestError("The compressed request body is damaged, cut short or followed by other data.")
