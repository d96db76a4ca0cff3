"""The quart application: routes, middleware and error handling around the use cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart_trio import QuartTrio

from mlxcel_trio.http.conversation_routes import add_conversation_routes
from mlxcel_trio.http.errors import error_response
from mlxcel_trio.http.middleware import add_middleware
from mlxcel_trio.http.model_routes import add_model_routes
from mlxcel_trio.http.request import ApiRequest, Exchange
from mlxcel_trio.http.response_routes import add_response_routes

if TYPE_CHECKING:
    from collections.abc import Collection

    from quart_trio.wrappers import TrioResponse as Response

    from mlxcel_trio.http.usecases import UseCases

DEFAULT_MAX_BODY_BYTES = 16 * 1024 * 1024
DEFAULT_PING_INTERVAL = 15.0
DEFAULT_BODY_TIMEOUT = 60.0


class ApiApp(QuartTrio):
    """quart-trio with our request and exchange. It needs no lifespan and starts nothing in ``nursery``."""

    asgi_http_class = Exchange
    request_class = ApiRequest


def create_app(
    use_cases: UseCases,
    *,
    api_keys: Collection[str] = (),
    allowed_origins: Collection[str] = (),
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    ping_interval: float | None = DEFAULT_PING_INTERVAL,
    body_timeout: float = DEFAULT_BODY_TIMEOUT,
) -> QuartTrio:
    """The ASGI application that serves ``use_cases``.

    ``api_keys``: one of them is demanded; empty: none. ``allowed_origins``: browser origins, ``*`` for all;
    empty: loopback origins. ``max_body_bytes``: limit of a request body, as sent and decompressed.
    ``ping_interval``: seconds of silence on a stream before its state is repeated; ``None`` for never.
    ``body_timeout``: seconds for a request body to arrive.
    """
    app = ApiApp(__name__, static_folder=None)
    app.config.update(MAX_CONTENT_LENGTH=max_body_bytes, BODY_TIMEOUT=body_timeout, RESPONSE_TIMEOUT=None)
    # Redirects would be answers without our envelope, and model names may hold any run of slashes.
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    add_middleware(app, api_keys=api_keys, allowed_origins=allowed_origins)
    add_response_routes(
        app,
        use_cases.responses,
        use_cases.stored,
        max_body_bytes=max_body_bytes,
        ping_interval=ping_interval,
    )
    add_conversation_routes(app, use_cases.conversations, max_body_bytes=max_body_bytes)
    add_model_routes(app, use_cases.responses)

    @app.errorhandler(Exception)
    async def answer_error(error: Exception) -> Response:
        return error_response(error)

    return app
