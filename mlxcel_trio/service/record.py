"""What is kept of one response: itself, and its turn in a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mlxcel_trio.core.dialogue import Dialogue
    from mlxcel_trio.core.plan import CreatePlan
    from mlxcel_trio.protocol.responses import Response
    from mlxcel_trio.service.conversations import Conversations
    from mlxcel_trio.service.stored_responses import LiveResponse, StoredResponses


class OpenDialogue(NamedTuple):
    """The dialogue of a request. ``conversation_existed`` when its conversation was there at the start."""

    dialogue: Dialogue
    conversation_existed: bool


class Record:
    """Where a response is found while it is generated, and what is left when it has ended."""

    def __init__(
        self,
        stored: StoredResponses,
        conversations: Conversations,
        *,
        owner: str | None,
        plan: CreatePlan,
        opened: OpenDialogue,
    ) -> None:
        self._stored = stored
        self._conversations = conversations
        self._owner = owner
        self._plan = plan
        self._opened = opened

    @property
    def dialogue(self) -> Dialogue:
        """What the response answers."""
        return self._opened.dialogue

    def live(self, run: LiveResponse) -> AbstractContextManager[None]:
        """A block in which the response is found by its id."""
        return self._stored.live(self._owner, run, kept=self._plan.store or self._plan.background)

    def keep(self, response: Response) -> Response:
        """Store a response that has ended, and append its turn, as far as the request wants that.

        Returns the response as it is from now on: a job too large to be kept has failed. A failure that the
        client gets as an HTTP error leaves nothing.
        """
        plan = self._plan
        if plan.background:
            response = self._stored.keep_job(self._owner, response, self.dialogue, chainable=plan.store)
        elif plan.store and (plan.stream or response.status != "failed"):
            self._stored.keep(self._owner, response, self.dialogue)
        if plan.extends_conversation:
            self._append_turn(response)
        return response

    def _append_turn(self, response: Response) -> None:
        conversation = self._plan.conversation
        if conversation is not None and response.output and response.status in ("completed", "incomplete"):
            self._conversations.append_turn(
                self._owner,
                conversation.id,
                self.dialogue.turn(response.output),
                existed=self._opened.conversation_existed,
            )
