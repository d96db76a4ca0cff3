"""The requests of ``data/client_requests.jsonl``, which real clients sent, and which of them are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from support.exchanges import Step, value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from support.exchanges import Exchange
    from support.published import Json

REQUESTS = Path(__file__).parent.parent / "data" / "client_requests.jsonl"


class ClientRequest(Struct, frozen=True):
    """A line of the file; ``body`` is ``None`` where none was sent.

    ``ids`` says what the ids in it are that the client got from its server: ``15.output[0].id`` is of the
    answer to the request in line 15.
    """

    client: str
    method: str
    path: str
    body: dict[str, Any] | None
    ids: dict[str, str] = {}

    @property
    def creates(self) -> bool:
        """Whether it asks for a response."""
        return (self.method, self.path) == ("POST", "/v1/responses")

    def step(self, done: Mapping[int, Exchange]) -> Step:
        """The request as its client would have sent it to a server that answered the earlier ones so.

        The id in an answer that was refused stays as it was recorded.
        """
        path, body = self.path, json.dumps(self.body)
        for recorded, reference in self.ids.items():
            given = value_at(done, reference) or recorded
            path, body = path.replace(recorded, given), body.replace(recorded, given)
        return Step(self.method, path, json.loads(body))


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


def refused_field(body: Json) -> str | None:
    """The field for which a create request is refused; ``None``: it is answered."""
    return next(never_accepted(body), None) or next(not_built(body), None)
