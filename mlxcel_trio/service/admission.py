"""Waiting for a slot: the async side of ``core.admission``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from mlxcel_trio.core.admission import Admission, Ticket


class Slots:
    """Generation slots, granted strictly in order of admission."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._waiters: dict[Ticket, trio.Event] = {}

    @property
    def running(self) -> int:
        """Tickets that hold a slot."""
        return self._admission.running

    @property
    def waiting(self) -> int:
        """Tickets that wait for one."""
        return self._admission.waiting

    def admit(self) -> Ticket:
        """Take a place in the queue, or a slot if one is free.

        :raises ServerOverloadedError: the queue is full.
        """
        return self._admission.admit()

    def check_room(self) -> None:
        """Return if :meth:`admit` would succeed now.

        :raises ServerOverloadedError: the queue is full.
        """
        self._admission.check_room()

    async def granted(self, ticket: Ticket) -> None:
        """Wait until ``ticket`` holds a slot. After a cancel the ticket keeps its place."""
        if ticket.granted:
            return
        event = self._waiters[ticket] = trio.Event()
        try:
            await event.wait()
        finally:
            del self._waiters[ticket]

    def release(self, ticket: Ticket) -> None:
        """Give the place or slot back, at any stage; idempotent."""
        for granted in self._admission.release(ticket):
            if granted in self._waiters:
                self._waiters[granted].set()
