"""The end of service: runs that are still going then are ended, so that their clients hear of it."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator


class ClosingTime:
    """A deadline over work that comes and goes; there is none until :meth:`set`."""

    def __init__(self) -> None:
        self._deadline = math.inf
        self._scopes: set[trio.CancelScope] = set()

    def set(self, deadline: float) -> None:
        """End what is open at ``deadline``, and at once what is opened later; in trio's time."""
        self._deadline = deadline
        for scope in self._scopes:
            scope.deadline = deadline

    @contextmanager
    def scope(self) -> Iterator[trio.CancelScope]:
        """A cancel scope with that deadline, whenever it is set."""
        with trio.CancelScope(deadline=self._deadline) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.remove(scope)
