"""Responses that can be asked for by id: those that are stored, and those still being generated."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from mlxcel_trio.core.pagination import page_of, read_page_query
from mlxcel_trio.core.store import BoundedStore, Key, StoreLimits
from mlxcel_trio.core.transcript import EMPTY, StoredItem
from mlxcel_trio.core.validation.refusals import shown
from mlxcel_trio.errors import InvalidRequestError, NotFoundError
from mlxcel_trio.protocol.codec import encode, encode_to_keep
from mlxcel_trio.protocol.responses import DeletedResponse, Response, ResponseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mlxcel_trio.core.dialogue import Dialogue
    from mlxcel_trio.core.store import Entry
    from mlxcel_trio.core.transcript import Transcript
    from mlxcel_trio.protocol.lists import ItemList

_UNFINISHED = ("queued", "in_progress")

_MAX_STAND_INS = 1024
_MAX_STAND_IN_BYTES = 16 * 1024 * 1024


class StoredResponse(Struct, frozen=True):
    """A terminal response as it was sent, and the items that its request brought.

    What is not ``chainable`` can be read, and no request can continue it.
    """

    body: bytes
    input_items: tuple[StoredItem, ...]
    chainable: bool = True


class LiveResponse(Protocol):
    """A response that is being generated."""

    @property
    def response(self) -> Response:
        """Its object as of now."""

    @property
    def input_items(self) -> tuple[StoredItem, ...]:
        """What its request brought."""

    def cancel(self) -> Response:
        """End it as cancelled, unless it has ended; returns the final object either way."""


class StoredResponses:
    """Finds responses by owner and id. Used from the trio thread; no method waits.

    ``clock`` gives seconds that never go back.
    """

    def __init__(
        self, limits: StoreLimits, *, ephemeral_ttl_seconds: float, clock: Callable[[], float]
    ) -> None:
        """``ephemeral_ttl_seconds``: for which jobs can be read that are not to be stored."""
        self._store: BoundedStore[StoredResponse] = BoundedStore(limits)
        self._ephemeral_ttl_seconds = ephemeral_ttl_seconds
        # Of jobs too large for the store; a few hundred bytes each.
        self._stand_ins: BoundedStore[StoredResponse] = BoundedStore(
            StoreLimits(
                max_entries=_MAX_STAND_INS,
                max_bytes=_MAX_STAND_IN_BYTES,
                ttl_seconds=ephemeral_ttl_seconds,
            )
        )
        self._clock = clock
        self._live: dict[Key, LiveResponse] = {}
        self._live_and_kept: set[Key] = set()

    @property
    def enabled(self) -> bool:
        """Whether anything is stored at all."""
        return self._store.enabled

    @property
    def retained_bytes(self) -> int:
        """Approximate memory of what is stored."""
        return self._store.retained_bytes

    def __len__(self) -> int:
        return len(self._store)

    @contextmanager
    def live(self, owner: str | None, run: LiveResponse, *, kept: bool) -> Iterator[None]:
        """Let ``run`` be found while the block is open; unless it is ``kept``, to be cancelled only."""
        key = Key(owner, run.response.id)
        self._live[key] = run
        if kept:
            self._live_and_kept.add(key)
        try:
            yield
        finally:
            del self._live[key]
            self._live_and_kept.discard(key)

    def keep(self, owner: str | None, response: Response, dialogue: Dialogue) -> None:
        """Store a terminal response and the dialogue up to its end."""
        self._put_chainable(owner, response, dialogue)

    def keep_job(
        self, owner: str | None, response: Response, dialogue: Dialogue, *, chainable: bool
    ) -> Response:
        """Store a background response that has ended; without ``chainable`` for a short time.

        One that is too large is replaced by a failed one, so that a poll is answered in any case; one without
        output stays what it is and loses its dialogue. Returns what was stored.
        """
        if chainable:
            kept = self._put_chainable(owner, response, dialogue)
        else:
            kept = self._put_unchainable(owner, response, dialogue.own, self._ephemeral_ttl_seconds)
        if kept:
            return response
        remains = _too_large(response) if response.output else response
        ttl_seconds = None if chainable else self._ephemeral_ttl_seconds
        if not self._put_unchainable(owner, remains, (), ttl_seconds):
            body = encode_to_keep(remains)
            stand_in = StoredResponse(body, (), chainable=False)
            key = Key(owner, remains.id)
            self._stand_ins.put(key, stand_in, own_bytes=sys.getsizeof(body), now=self._clock())
        return remains

    def retrieve(self, owner: str | None, response_id: str) -> bytes:
        """The response object, encoded.

        :raises NotFoundError: no such response, or one that is not stored.
        :raises InvalidRequestError: nothing is stored here.
        """
        self._check_enabled()
        key = Key(owner, response_id)
        run = self._unfinished(key)
        return self._find(key).value.body if run is None else encode(run.response)

    def delete(self, owner: str | None, response_id: str) -> DeletedResponse:
        """Forget a stored response. What continues it is not harmed.

        :raises NotFoundError: as for :meth:`retrieve`.
        :raises InvalidRequestError: it has not finished, or nothing is stored here.
        """
        self._check_enabled()
        key = Key(owner, response_id)
        run = self._unfinished(key)
        if run is not None:
            raise InvalidRequestError(
                f"Response {shown(response_id)} has not finished (status: {run.response.status}). "
                "Cancel it first."
            )
        now = self._clock()
        if self._store.delete(key, now=now) is None and self._stand_ins.delete(key, now=now) is None:
            raise _not_found(response_id)
        return DeletedResponse(id=response_id)

    def cancel(self, owner: str | None, response_id: str) -> bytes:
        """End a response that is being generated; one that has ended stays as it is. Its object, encoded.

        :raises NotFoundError: as for :meth:`retrieve`; but what is being generated is found, stored or not.
        :raises InvalidRequestError: nothing is stored here.
        """
        self._check_enabled()
        key = Key(owner, response_id)
        run = self._live.get(key)
        if run is not None and run.response.status in _UNFINISHED:
            return encode(run.cancel())
        return self._find(key).value.body

    def input_items(self, owner: str | None, response_id: str, query: Mapping[str, str]) -> ItemList:
        """A page of the items that the request of a response brought.

        :raises NotFoundError: as for :meth:`retrieve`.
        :raises InvalidRequestError: a bad page, or nothing is stored here.
        """
        self._check_enabled()
        page = read_page_query(query)
        key = Key(owner, response_id)
        run = self._unfinished(key)
        return page_of(self._find(key).value.input_items if run is None else run.input_items, page)

    def history(self, owner: str | None, response_id: str) -> Transcript:
        """The dialogue that ends with a stored response, for a request that continues it.

        :raises InvalidRequestError: no such response, or it has not finished.
        """
        key = Key(owner, response_id)
        run = self._unfinished(key)
        if run is not None:
            raise InvalidRequestError(
                f"previous response '{response_id}' has not finished (status: {run.response.status})",
                param="previous_response_id",
            )
        entry = self._store.get(key, now=self._clock())
        if entry is None or not entry.value.chainable:
            raise InvalidRequestError(
                f"No stored response has the id {shown(response_id)}. It may have expired, been deleted or "
                "been created with 'store': false. Send the whole history in 'input'.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return entry.transcript

    def find_item(self, owner: str | None, item_id: str) -> StoredItem | None:
        """An item of any stored response or of its history, ``None`` when there is none."""
        return self._store.find_item(owner, item_id, now=self._clock())

    def _unfinished(self, key: Key) -> LiveResponse | None:
        """What is being generated and will be stored."""
        run = self._live.get(key) if key in self._live_and_kept else None
        return run if run is not None and run.response.status in _UNFINISHED else None

    def _find(self, key: Key) -> Entry[StoredResponse]:
        now = self._clock()
        entry = self._store.get(key, now=now) or self._stand_ins.get(key, now=now)
        if entry is None:
            raise _not_found(key.id)
        return entry

    def _put_chainable(self, owner: str | None, response: Response, dialogue: Dialogue) -> bool:
        stored = StoredResponse(encode_to_keep(response), dialogue.own)
        return self._put(owner, response, stored, dialogue.history.append(dialogue.turn(response.output)))

    def _put_unchainable(
        self, owner: str | None, response: Response, items: tuple[StoredItem, ...], ttl_seconds: float | None
    ) -> bool:
        stored = StoredResponse(encode_to_keep(response), items, chainable=False)
        # The items are in no transcript that would count them.
        item_bytes = sum(item.size_bytes for item in items)
        return self._put(owner, response, stored, EMPTY, item_bytes, ttl_seconds)

    def _put(
        self,
        owner: str | None,
        response: Response,
        stored: StoredResponse,
        transcript: Transcript,
        item_bytes: int = 0,
        ttl_seconds: float | None = None,
    ) -> bool:
        sizes = map(sys.getsizeof, (stored, stored.body, stored.input_items))
        return self._store.put(
            Key(owner, response.id),
            stored,
            own_bytes=sum(sizes) + item_bytes,
            transcript=transcript,
            now=self._clock(),
            ttl_seconds=ttl_seconds,
        )

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise InvalidRequestError(
                "The response store is disabled on this server. Its operator can enable it with "
                "--responses-store-max-entries.",
                code="store_disabled",
            )


def _too_large(response: Response) -> Response:
    error = ResponseError(
        "server_error",
        "The finished response is larger than all the memory for stored responses. The server's operator can "
        "allow more with --responses-store-max-bytes.",
    )
    return replace(
        response, status="failed", completed_at=None, error=error, incomplete_details=None, output=()
    )


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(
        f"No response {shown(response_id)} here. It may have expired, been deleted or not been stored.",
        code="response_not_found",
    )
