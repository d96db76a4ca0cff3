"""``/v1/responses``, also mounted without ``/v1``. A handler decodes, calls one use case and encodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.http.body import read_body
from mlxcel_trio.http.json_response import json_response
from mlxcel_trio.http.request import current_request
from mlxcel_trio.http.sse import event_stream
from mlxcel_trio.protocol.codec import decode
from mlxcel_trio.protocol.requests import CreateResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quart import Quart
    from quart_trio.wrappers import TrioResponse as Response

    from mlxcel_trio.http.usecases import Responses, StoredResponses

PREFIXES = ("/v1/responses", "/responses")


def add_response_routes(
    app: Quart,
    responses: Responses,
    stored: StoredResponses,
    *,
    max_body_bytes: int,
    ping_interval: float | None,
) -> None:
    """Mount every path of responses. Errors are raised; ``http.errors`` answers them."""

    async def create_response() -> Response:
        request = current_request()
        create = decode(await read_body(request, max_body_bytes), CreateResponse)
        prepared = await responses.prepare(create, request.owner)
        request.response_id = prepared.response_id
        if prepared.background:
            return json_response(prepared.detach())
        request.resources.callback(prepared.close)
        if prepared.stream:
            return event_stream(prepared, ping_interval)
        return json_response(await prepared.run())

    async def count_input_tokens() -> Response:
        request = current_request()
        create = decode(await read_body(request, max_body_bytes), CreateResponse)
        return json_response(await responses.count_input_tokens(create, request.owner))

    async def retrieve_response(response_id: str) -> Response:
        request = current_request()
        _check_retrieve_query(request.args)
        return json_response(stored.retrieve(request.owner, response_id))

    async def delete_response(response_id: str) -> Response:
        return json_response(stored.delete(current_request().owner, response_id))

    async def cancel_response(response_id: str) -> Response:
        return json_response(stored.cancel(current_request().owner, response_id))

    async def list_input_items(response_id: str) -> Response:
        request = current_request()
        return json_response(stored.input_items(request.owner, response_id, request.args))

    for prefix in PREFIXES:
        app.post(prefix)(create_response)
        app.post(f"{prefix}/input_tokens")(count_input_tokens)
        app.get(f"{prefix}/<response_id>")(retrieve_response)
        app.delete(f"{prefix}/<response_id>")(delete_response)
        app.post(f"{prefix}/<response_id>/cancel")(cancel_response)
        app.get(f"{prefix}/<response_id>/input_items")(list_input_items)


def _check_retrieve_query(parameters: Mapping[str, str]) -> None:
    """Refuse what would need past events; what to ``include`` is accepted, as in a create request."""
    if parameters.get("stream", "false").lower() not in ("false", "0"):
        raise InvalidRequestError(
            "A response cannot be streamed again. Retrieve it without 'stream'.", param="stream"
        )
    if "starting_after" in parameters:
        raise InvalidRequestError(
            "'starting_after' belongs to a stream, and a response cannot be streamed again. Leave it out.",
            param="starting_after",
        )
