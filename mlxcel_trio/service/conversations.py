"""Conversations: transcripts that turns and clients append to."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from mlxcel_trio.core.dialogue import continue_dialogue
from mlxcel_trio.core.pagination import PageQuery, page_of, read_page_query
from mlxcel_trio.core.store import BoundedStore, Key, StoreLimits
from mlxcel_trio.core.transcript import EMPTY, Transcript
from mlxcel_trio.core.validation.conversations import MAX_NEW_ITEMS, read_metadata, read_new_items
from mlxcel_trio.core.validation.refusals import shown
from mlxcel_trio.errors import InvalidRequestError, NotFoundError
from mlxcel_trio.protocol.codec import decode, encode_to_keep
from mlxcel_trio.protocol.conversations import (
    Conversation,
    CreateConversation,
    CreateItems,
    DeletedConversation,
    UpdateConversation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mlxcel_trio.core.store import Entry
    from mlxcel_trio.core.transcript import StoredItem
    from mlxcel_trio.protocol.items import InputItem
    from mlxcel_trio.protocol.lists import ItemList

_ALL_NEW = PageQuery(order="asc", limit=MAX_NEW_ITEMS)


class Opened(NamedTuple):
    """A conversation as of the start of a turn; ``exists`` is false for an id that nobody has used yet."""

    transcript: Transcript
    exists: bool


class Conversations:
    """Finds conversations by owner and id. Used from the trio thread; no method waits.

    ``clock`` gives seconds that never go back, ``wall_clock`` Unix seconds. References to items that are in
    no conversation are looked up by ``find_item``, which gets owner and id.
    """

    def __init__(
        self,
        limits: StoreLimits,
        *,
        new_id: Callable[[str], str],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        find_item: Callable[[str | None, str], StoredItem | None],
    ) -> None:
        self._store: BoundedStore[bytes] = BoundedStore(limits)  # of encoded Conversation objects
        self._new_id = new_id
        self._clock = clock
        self._wall_clock = wall_clock
        self._find_item_elsewhere = find_item

    @property
    def enabled(self) -> bool:
        """Whether there are conversations at all."""
        return self._store.enabled

    @property
    def retained_bytes(self) -> int:
        """Approximate memory of all conversations."""
        return self._store.retained_bytes

    def __len__(self) -> int:
        return len(self._store)

    def create(self, owner: str | None, request: CreateConversation) -> bytes:
        """Begin a conversation; its object, encoded, as from every method that returns bytes.

        :raises InvalidRequestError: bad items or metadata, or conversations are disabled, as everywhere.
        """
        self._check_enabled()
        metadata = read_metadata(request.metadata)
        items = self._read_items(owner, EMPTY, request.items)
        key = Key(owner, self._new_id("conv"))
        return self._put(key, self._new(key, metadata), EMPTY.append(items))

    def retrieve(self, owner: str | None, conversation_id: str) -> bytes:
        """A conversation.

        :raises NotFoundError: there is none of that id, as everywhere below.
        """
        return self._find(Key(owner, conversation_id)).value

    def update(self, owner: str | None, conversation_id: str, request: UpdateConversation) -> bytes:
        """Replace its metadata."""
        key = Key(owner, conversation_id)
        entry = self._find(key)
        metadata = read_metadata(request.metadata, required=True)
        conversation = encode_to_keep(replace(decode(entry.value, Conversation), metadata=metadata))
        self._update(key, conversation, entry.transcript)
        return conversation

    def delete(self, owner: str | None, conversation_id: str) -> DeletedConversation:
        """Forget it. Responses that belong to it are not harmed."""
        self._check_enabled()
        if self._store.delete(Key(owner, conversation_id), now=self._clock()) is None:
            raise _not_found(conversation_id)
        return DeletedConversation(id=conversation_id)

    def create_items(self, owner: str | None, conversation_id: str, request: CreateItems) -> ItemList:
        """Append items and list them, in the order in which they came."""
        key = Key(owner, conversation_id)
        entry = self._find(key)
        items = self._read_items(owner, entry.transcript, request.items, required=True)
        if items:  # nothing new does not make it younger
            self._put(key, entry.value, entry.transcript.append(items))
        return page_of(items, _ALL_NEW)

    def list_items(self, owner: str | None, conversation_id: str, parameters: Mapping[str, str]) -> ItemList:
        """A page of its items; ``parameters`` are those of the URL."""
        entry = self._find(Key(owner, conversation_id))
        return page_of(entry.transcript.all_items(), read_page_query(parameters))

    def retrieve_item(self, owner: str | None, conversation_id: str, item_id: str) -> bytes:
        """One of its items; of several with that id the latest."""
        for item in reversed(self._find(Key(owner, conversation_id)).transcript.all_items()):
            if item.id == item_id:
                return item.encoded
        raise _item_not_found(conversation_id, item_id)

    def delete_item(self, owner: str | None, conversation_id: str, item_id: str) -> bytes:
        """Take an item out of it; the conversation."""
        key = Key(owner, conversation_id)
        entry = self._find(key)
        transcript = entry.transcript.without(item_id)
        if transcript is entry.transcript:
            raise _item_not_found(conversation_id, item_id)
        self._update(key, entry.value, transcript)
        return entry.value

    def open(self, owner: str | None, conversation_id: str) -> Opened:
        """What a turn that starts now continues."""
        entry = self._store.get(Key(owner, conversation_id), now=self._clock())
        return Opened(EMPTY, exists=False) if entry is None else Opened(entry.transcript, exists=True)

    def append_turn(
        self, owner: str | None, conversation_id: str, turn: Iterable[StoredItem], *, existed: bool
    ) -> None:
        """Append a turn that has ended, behind whatever was appended since it started.

        A conversation that ``existed`` when the turn started and is gone stays gone.
        """
        key = Key(owner, conversation_id)
        entry = self._store.get(key, now=self._clock())
        if entry is not None:
            self._put(key, entry.value, entry.transcript.append(turn))
        elif not existed:
            self._put(key, self._new(key, {}), EMPTY.append(turn))

    def find_item(self, owner: str | None, item_id: str) -> StoredItem | None:
        """An item of any conversation or of what is stored elsewhere, ``None`` when there is none."""
        item = self._store.find_item(owner, item_id, now=self._clock())
        return self._find_item_elsewhere(owner, item_id) if item is None else item

    def _read_items(
        self, owner: str | None, history: Transcript, items: list[InputItem] | None, *, required: bool = False
    ) -> tuple[StoredItem, ...]:
        return continue_dialogue(
            history,
            read_new_items(items, required=required),
            find_item=partial(self.find_item, owner),
            new_id=self._new_id,
            path="items",
        ).own

    def _new(self, key: Key, metadata: dict[str, str]) -> bytes:
        return encode_to_keep(Conversation(id=key.id, created_at=int(self._wall_clock()), metadata=metadata))

    def _put(self, key: Key, conversation: bytes, transcript: Transcript) -> bytes:
        own_bytes = sys.getsizeof(conversation)
        self._store.put(key, conversation, own_bytes=own_bytes, transcript=transcript, now=self._clock())
        return conversation

    def _update(self, key: Key, conversation: bytes, transcript: Transcript) -> None:
        """As ``_put``, but its age goes on."""
        own_bytes = sys.getsizeof(conversation)
        self._store.update(key, conversation, own_bytes=own_bytes, transcript=transcript, now=self._clock())

    def _find(self, key: Key) -> Entry[bytes]:
        self._check_enabled()
        entry = self._store.get(key, now=self._clock())
        if entry is None:
            raise _not_found(key.id)
        return entry

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise InvalidRequestError(
                "The conversation store is disabled on this server. Its operator can enable it with "
                "--conversation-store-max-entries.",
                code="store_disabled",
            )


def _not_found(conversation_id: str) -> NotFoundError:
    return NotFoundError(
        f"No conversation {shown(conversation_id)} here. It may have expired or been deleted.",
        code="conversation_not_found",
    )


def _item_not_found(conversation_id: str, item_id: str) -> NotFoundError:
    return NotFoundError(
        f"No item {shown(item_id)} in conversation {shown(conversation_id)}.", code="item_not_found"
    )
