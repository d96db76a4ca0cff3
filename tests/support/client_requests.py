"""The requests of ``data/client_requests.jsonl``, which real clients sent, and which of them are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.published import Json

REQUESTS = Path(__file__).parent.parent / "data" / "client_requests.jsonl"


class ClientRequest(Struct, frozen=True):
    """A line of the file; ``body`` is ``None`` where none was sent."""

    client: str
    method: str
    path: str
    body: dict[str, Any] | None

    @property
    def creates(self) -> bool:
        """Whether it asks for a response."""
        return (self.method, self.path) == ("POST", "/v1/responses")


def read_client_requests() -> dict[int, ClientRequest]:
    """All requests by the number of their line, which starts at 1."""
    lines = REQUESTS.read_bytes().splitlines()
    return {
        number: msgspec.json.decode(line, type=ClientRequest) for number, line in enumerate(lines, start=1)
    }


def never_accepted(body: Json) -> Iterator[str]:
    """The fields of a create request that the API of this server rules out, in the order of the checks."""
    if body.get("truncation") not in (None, "disabled"):
        yield "truncation"
    for index, tool in enumerate(body.get("tools") or ()):
        if tool["type"] != "function":
            yield f"tools[{index}].type"


def not_built(body: Json) -> Iterator[str]:
    """The fields that ask for what this version does not do yet, in the order of its table."""
    if body.get("tools"):
        yield "tools"
    if ((body.get("text") or {}).get("format") or {"type": "text"})["type"] != "text":
        yield "text.format"
    if body.get("previous_response_id"):
        yield "previous_response_id"
    if body.get("background"):
        yield "background"
    if isinstance(body["input"], list):
        for index, item in enumerate(body["input"]):
            if item.get("type") == "item_reference":
                yield f"input[{index}].type"


def refused_field(body: Json, *, stores: bool = True) -> str | None:
    """The field for which a create request is refused; ``None``: it is answered.

    ``stores`` is whether the server stores responses at all.
    """
    if body.get("previous_response_id") and not stores:
        return "previous_response_id"
    return next(never_accepted(body), None) or next(not_built(body), None)
