"""Chains of responses in a store, made without a model."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from benchmarks.http_cost.answers import FINISHED
from mlxcel_trio.core.dialogue import Dialogue, continue_dialogue
from mlxcel_trio.core.ids import IdFactory
from mlxcel_trio.core.store import StoreLimits
from mlxcel_trio.core.transcript import EMPTY
from mlxcel_trio.protocol.items import InputItem
from mlxcel_trio.protocol.responses import Message, OutputText
from mlxcel_trio.service.stored_responses import StoredResponses

if TYPE_CHECKING:
    from mlxcel_trio.core.transcript import Transcript
    from mlxcel_trio.protocol.responses import Response

BOUNDLESS = StoreLimits(max_entries=10**9, max_bytes=10**15, ttl_seconds=3600)


class Turn(NamedTuple):
    """A response that has ended, and the dialogue that it answers."""

    response: Response
    dialogue: Dialogue


class Chains:
    """A store without bounds, and what goes into it: questions and answers of ``text_bytes`` each."""

    def __init__(self, text_bytes: int) -> None:
        self.stored = StoredResponses(BOUNDLESS, ephemeral_ttl_seconds=1, clock=time.monotonic)
        self._new_id = IdFactory(secrets.token_bytes).new
        self._text = "a" * text_bytes

    def grow(self, length: int) -> str:
        """Store a chain of that length; the id of its last response."""
        history = EMPTY
        for _ in range(length):
            turn = self.turn(history)
            self.keep(turn)
            history = self.stored.history(None, turn.response.id)
        return turn.response.id

    def turn(self, history: Transcript) -> Turn:
        """A question behind ``history`` with its answer, not stored yet."""
        # Reading the history back is what a request needs; the store does not look at it.
        dialogue = replace(self.continue_from(EMPTY), history=history)
        message = Message(self._new_id("msg"), "completed", (OutputText(self._text),))
        return Turn(replace(FINISHED, id=self._new_id("resp"), output=(message,)), dialogue)

    def continue_from(self, history: Transcript) -> Dialogue:
        """What the server does with a question that continues ``history``."""
        question = InputItem(type="message", role="user", content=self._text)
        return continue_dialogue(history, [question], find_item=self._find_item, new_id=self._new_id)

    def keep(self, turn: Turn) -> None:
        """What the server does when a response has ended."""
        self.stored.keep(None, turn.response, turn.dialogue)

    def _find_item(self, item_id: str) -> None:
        raise AssertionError(f"no question refers to an item, not to {item_id} either")
