"""How a response gets to the engine: what it holds on its way there, and what it waits for."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import trio

from mlxcel_trio.errors import ServerOverloadedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mlxcel_trio.core.admission import Ticket
    from mlxcel_trio.core.jobs import ActiveJobs, JobPlace
    from mlxcel_trio.service.admission import Slots
    from mlxcel_trio.service.generation import Generation


class Start(Protocol):
    """The start of one response."""

    async def wait(self) -> Generation:
        """Wait until it may go to the engine; says what to generate.

        :raises ApiError: there is nothing to generate after all.
        """

    def entered(self) -> None:
        """The engine has it now."""

    def close(self) -> None:
        """Give back everything. Idempotent, at any stage; never waits."""


class ForegroundStart:
    """Holds a place in the queue from the beginning; its prompt is rendered already."""

    def __init__(self, generation: Generation, slots: Slots, ticket: Ticket) -> None:
        self._generation = generation
        self._slots = slots
        self._ticket = ticket

    async def wait(self) -> Generation:
        """Wait for the slot."""
        await self._slots.granted(self._ticket)
        return self._generation

    def entered(self) -> None:
        """Nobody waits for that."""

    def close(self) -> None:
        """Give the queue place or slot back."""
        self._slots.release(self._ticket)


class Turns:
    """Lets those who took a turn pass one after the other, in that order."""

    def __init__(self) -> None:
        self._turns: OrderedDict[trio.Event, None] = OrderedDict()

    def take(self) -> trio.Event:
        """A turn behind all others. It has come when the event is set."""
        turn = trio.Event()
        self._turns[turn] = None
        self._call_first()
        return turn

    def leave(self, turn: trio.Event) -> None:
        """Let the next one pass. Idempotent, also for turns that have not come."""
        self._turns.pop(turn, None)
        self._call_first()

    def _call_first(self) -> None:
        if self._turns:
            next(iter(self._turns)).set()


class JobStart:
    """Holds a place among the jobs, takes one in the queue when its task starts, and renders with a slot.

    Jobs enter the engine in the order in which they entered the queue, however long each one renders.
    """

    def __init__(
        self,
        render: Callable[[], Awaitable[Generation]],
        slots: Slots,
        turns: Turns,
        active: ActiveJobs,
        place: JobPlace,
    ) -> None:
        self._render = render
        self._slots = slots
        self._turns = turns
        self._active = active
        self._place = place
        self._turn: trio.Event | None = None
        self._ticket: Ticket | None = None
        self._refusal: ServerOverloadedError | None = None

    def enter_queue(self) -> None:
        """Take the queue place. When there is none, :meth:`wait` says so."""
        try:
            self._ticket = self._slots.admit()
        except ServerOverloadedError as refusal:
            self._refusal = refusal
        else:
            self._turn = self._turns.take()

    async def wait(self) -> Generation:
        """Wait for the slot, render, and wait for the jobs ahead.

        Rendering comes late: prompts that wait would take memory, and threads from foreground responses.

        :raises ServerOverloadedError: the queue was full.
        :raises InvalidRequestError: the prompt cannot be rendered, or is too long.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._ticket is None or self._turn is None:
            raise RuntimeError("The job has not entered the queue. Call enter_queue() first.")
        await self._slots.granted(self._ticket)
        generation = await self._render()
        await self._turn.wait()
        return generation

    def entered(self) -> None:
        """Let the next job follow."""
        if self._turn is not None:
            self._turns.leave(self._turn)

    def close(self) -> None:
        """Give back the turn, the queue place or slot, and the place among the jobs."""
        self.entered()
        if self._ticket is not None:
            self._slots.release(self._ticket)
        self._active.release(self._place)
