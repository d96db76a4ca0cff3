"""What every request passes: the check of origin and API key, and the CORS headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from quart_trio.wrappers import TrioResponse as Response

from mlxcel_trio.errors import AuthenticationError, OriginNotAllowedError
from mlxcel_trio.http.request import current_request

if TYPE_CHECKING:
    from collections.abc import Collection

    from quart import Quart, Request

ANY_ORIGIN = "*"
LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
READABLE_HEADERS = "x-request-id, retry-after"
PREFLIGHT_SECONDS = "600"

OPEN_PATHS = frozenset({"/health"})


def add_middleware(app: Quart, *, api_keys: Collection[str], allowed_origins: Collection[str]) -> None:
    """Guard every path of ``app``, unknown ones included.

    Browser pages may call from ``allowed_origins`` (``*``: from everywhere), by default from loopback
    origins. With ``api_keys`` every request needs one as a bearer token, but for ``/health`` and preflights.
    """
    origins = OriginPolicy(allowed_origins)
    keys = tuple(key.encode() for key in api_keys)

    @app.before_request
    async def guard() -> Response | None:
        request = current_request()
        origins.check(request)
        if request.method == "OPTIONS":
            return _preflight_response(request)
        if keys and request.path not in OPEN_PATHS:
            request.owner = owner_of(check_api_key(request, keys))
        return None

    @app.after_request
    async def add_cors_headers(response: Response) -> Response:
        response.headers.update(origins.headers(current_request()))
        return response


class OriginPolicy:
    """Which pages may call the server. Requests without an ``Origin`` do not come from a page."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(origin.lower().rstrip("/") for origin in allowed)

    def allows(self, origin: str) -> bool:
        """Whether ``origin``, as the browser sends it, may call."""
        if not self._allowed:
            return LOOPBACK_ORIGIN.fullmatch(origin) is not None
        return ANY_ORIGIN in self._allowed or origin.lower() in self._allowed

    def check(self, request: Request) -> None:
        """Refuse a page from elsewhere.

        :raises OriginNotAllowedError: the request has an origin that is not allowed.
        """
        for origin in request.headers.getlist("Origin"):
            if not self.allows(origin):
                raise OriginNotAllowedError(
                    f"Pages from '{origin}' may not call this server. Its operator can allow them with "
                    "--allowed-origin."
                )

    def headers(self, request: Request) -> dict[str, str]:
        """The CORS headers of an answer to ``request``."""
        headers = {"Vary": "Origin"}
        origin = request.headers.get("Origin")
        if origin is not None and self.allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = READABLE_HEADERS
        return headers


def owner_of(key: bytes) -> str:
    """Whose state a request sees: a digest, so that stores and logs hold no key."""
    return hashlib.sha256(key).hexdigest()


def check_api_key(request: Request, keys: tuple[bytes, ...]) -> bytes:
    """Demand one of ``keys`` and return it, in a time that does not tell how much of a wrong one was right.

    :raises AuthenticationError: no bearer token, or none of the keys.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    given = token.strip().encode()
    matches = [hmac.compare_digest(given, key) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise AuthenticationError(
            "An API key is needed: send 'Authorization: Bearer KEY' with one that this server knows."
        )
    return given


def _preflight_response(request: Request) -> Response:
    headers = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": PREFLIGHT_SECONDS}
    requested = request.headers.get("Access-Control-Request-Headers")
    if requested is not None:
        headers["Access-Control-Allow-Headers"] = requested
    response = Response(b"", 204, headers)
    del response.headers["Content-Type"]
    return response
