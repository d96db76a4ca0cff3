"""The id by which a client's report finds its lines in our log."""

from __future__ import annotations

import os

REQUEST_ID_HEADER = b"x-request-id"


def new_request_id() -> str:
    """``req_`` and 128 random bits in hex."""
    return f"req_{os.urandom(16).hex()}"
