"""JSON answers."""

from __future__ import annotations

import msgspec
from quart_trio.wrappers import TrioResponse as Response


def json_response(body: object, status: int = 200) -> Response:
    """``body``, a wire struct or an object that is encoded already, as JSON."""
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(encoded, status=status, content_type="application/json")
