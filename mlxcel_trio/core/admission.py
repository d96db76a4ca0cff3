"""Who may generate, and who waits: slots are granted strictly in order of admission."""

from __future__ import annotations

from collections import OrderedDict

from mlxcel_trio.errors import ConfigurationError, ServerOverloadedError


class Ticket:
    """One admitted response. Compared by identity; belongs to the admission that issued it."""

    __slots__ = ("granted",)

    def __init__(self) -> None:
        self.granted = False
        """Whether it holds a slot now."""


class Admission:
    """A fixed number of slots and a bounded queue in front of them.

    No ticket waits while a slot is free. Every call takes constant time. Not meant to be shared between
    threads.

    :param slots: how many tickets may hold a slot at once, at least 1.
    :param queue_depth: how many more may wait for one, at least 0.
    :raises ConfigurationError: a number out of range.
    """

    def __init__(self, slots: int, queue_depth: int) -> None:
        if slots < 1 or queue_depth < 0:
            raise ConfigurationError(
                f"{slots} slots with a queue of {queue_depth} cannot serve. Use at least 1 and 0."
            )
        self._slots = slots
        self._queue_depth = queue_depth
        self._holders: set[Ticket] = set()
        # An OrderedDict gives up its first and any other key in constant time; a deque or a dict does not.
        self._queue: OrderedDict[Ticket, None] = OrderedDict()

    @property
    def running(self) -> int:
        """Tickets that hold a slot."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        """Tickets that wait for one."""
        return len(self._queue)

    def admit(self) -> Ticket:
        """Issue a ticket: with a slot if one is free, else at the end of the queue.

        :raises ServerOverloadedError: the queue is full; nothing has changed.
        """
        self.check_room()
        ticket = Ticket()
        if self.running < self._slots:
            self._grant(ticket)
        else:
            self._queue[ticket] = None
        return ticket

    def check_room(self) -> None:
        """Return if one more can be admitted.

        :raises ServerOverloadedError: the queue is full.
        """
        if self.running >= self._slots and self.waiting >= self._queue_depth:
            raise ServerOverloadedError(
                f"All {self._slots} slots are busy and {self.waiting} requests wait already. Try again later."
            )

    def release(self, ticket: Ticket) -> tuple[Ticket, ...]:
        """Take a ticket back, waiting or holding a slot, and return those that get a slot by it.

        Releasing a ticket again does nothing.
        """
        if ticket not in self._holders:
            self._queue.pop(ticket, None)
            return ()
        self._holders.remove(ticket)
        ticket.granted = False
        if not self._queue:
            return ()
        first, _ = self._queue.popitem(last=False)
        self._grant(first)
        return (first,)

    def _grant(self, ticket: Ticket) -> None:
        self._holders.add(ticket)
        ticket.granted = True
