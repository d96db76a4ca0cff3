"""The paths of the API. A handler decodes, calls one use case and encodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from quart_trio.wrappers import TrioResponse as Response

from mlxcel_trio.http.body import read_body
from mlxcel_trio.http.request import current_request
from mlxcel_trio.http.sse import event_stream
from mlxcel_trio.protocol.codec import decode_create

if TYPE_CHECKING:
    from quart import Quart

    from mlxcel_trio.http.usecases import Responses


def add_routes(app: Quart, responses: Responses, *, max_body_bytes: int, ping_interval: float | None) -> None:
    """Mount every path on ``app``. Errors are raised; ``http.errors`` answers them."""

    @app.post("/v1/responses")
    @app.post("/responses")
    async def create_response() -> Response:
        request = current_request()
        prepared = await responses.prepare(decode_create(await read_body(request, max_body_bytes)))
        request.resources.callback(prepared.close)
        request.response_id = prepared.response_id
        if prepared.stream:
            return event_stream(prepared, ping_interval)
        return json_response(await prepared.run())

    @app.get("/v1/models")
    async def list_models() -> Response:
        return json_response(responses.models())

    @app.get("/v1/models/<path:name>")
    async def get_model(name: str) -> Response:
        return json_response(responses.model(name))

    @app.get("/health")
    async def health() -> Response:
        report = responses.health()
        return json_response(report, status=200 if report.ok else 503)


def json_response(body: object, status: int = 200) -> Response:
    """``body``, a wire struct, as JSON."""
    return Response(msgspec.json.encode(body), status=status, content_type="application/json")
