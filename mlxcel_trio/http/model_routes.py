"""``/v1/models`` and ``/health``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.http.json_response import json_response

if TYPE_CHECKING:
    from quart import Quart
    from quart_trio.wrappers import TrioResponse as Response

    from mlxcel_trio.http.usecases import Responses


def add_model_routes(app: Quart, responses: Responses) -> None:
    """Mount what tells about model and engine."""

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
