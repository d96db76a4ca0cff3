"""One request as an ASGI exchange: its nursery, what it holds, and its line in the log."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import trio
from quart.globals import request_ctx
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from structlog.contextvars import bound_contextvars

from mlxcel_trio.http.errors import error_response
from mlxcel_trio.http.request_id import REQUEST_ID_HEADER, new_request_id
from mlxcel_trio.log import get_logger

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope
    from quart import Quart
    from quart.wrappers import Request

log = get_logger(__name__)

# The absolute form of a request target (RFC 9112, 3.2.2), as sent to proxies.
ABSOLUTE_FORM = re.compile(r"[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)


class ApiRequest(TrioRequest):
    """A request that owns things.

    What is pushed on ``resources`` is released when the request ends, however it ends: answered, failed, or
    given up by the client, be it before the first byte of the answer. ``response_id`` goes into the log.
    ``owner`` stands for the API key that the request carries, ``None`` on a server without keys.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.resources = AsyncExitStack()
        self.response_id: str | None = None
        self.owner: str | None = None


def current_request() -> ApiRequest:
    """The request that the running handler handles."""
    return cast("ApiRequest", request_ctx.request)


class Exchange(TrioASGIHTTPConnection):
    """Runs the handler and sends its response, in a nursery of this request.

    A client that goes away cancels the nursery. The disconnect that hypercorn reports after the last chunk
    does not: the chunk would be cut off, and the connection never closed or used again.
    """

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        path = ABSOLUTE_FORM.sub("", scope["path"], count=1)
        # quart fails on a path that is empty or does not start with a slash.
        scope["path"] = path if path.startswith("/") else f"/{path}"
        super().__init__(app, scope)
        self._request_id = new_request_id()
        self._status: int | None = None
        self._answered = False

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve the request. Cancellable throughout; logs one line when it ends."""
        started = trio.current_time()
        request = cast("ApiRequest", self._create_request_from_scope(send))
        with bound_contextvars(request_id=self._request_id):
            try:
                async with request.resources, trio.open_nursery() as nursery:
                    nursery.start_soon(self.handle_messages, nursery, request, receive)
                    nursery.start_soon(self.handle_request, nursery, request, partial(self._send, send))
            finally:
                self._log(request, trio.current_time() - started)

    async def handle_messages(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable
    ) -> None:
        """Take in the body until the client is gone; then cancel, unless the answer is out."""
        await super(TrioASGIHTTPConnection, self).handle_messages(request, receive)
        if not self._answered:
            nursery.cancel_scope.cancel()

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        """Have the app answer and send that; no time limit but the connection's."""
        try:
            response = await self.app.handle_request(request)
        except Exception as error:  # raised outside quart's own handlers, as for a host name it cannot read
            response = error_response(error)
        await self._send_response(send, response)
        nursery.cancel_scope.cancel()

    async def _send(self, send: ASGISendCallable, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = [*message["headers"], (REQUEST_ID_HEADER, self._request_id.encode())]
        elif message["type"] == "http.response.body":
            self._answered = not message["more_body"]
        await send(message)

    def _log(self, request: ApiRequest, seconds: float) -> None:
        fields: dict[str, object] = {"status": self._status, "duration_ms": round(1000 * seconds, 1)}
        if request.response_id is not None:
            fields["response_id"] = request.response_id
        if not self._answered:
            fields["complete"] = False
        log.info("request", method=request.method, path=request.path, **fields)
