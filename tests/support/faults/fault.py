"""A fault is our server but for one thing that it hears, does or says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.wrong_app import WrongServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from support.published import Json
    from support.wrong_app import Answer

    Say = Callable[[Answer], None]
    Hear = Callable[[Json], None]
    Inside = Callable[[], AbstractContextManager[object]]


class Faults(list[WrongServer]):
    """Servers with a fault, each named after the function that makes it, with the cases that report it."""

    def says(self, *cases: str) -> Callable[[Say], Say]:
        """Adds a server whose answers go through the function."""

        def add(change: Say) -> Say:
            self.append(WrongServer(change.__name__, cases, say=change))
            return change

        return add

    def hears(self, *cases: str) -> Callable[[Hear], Hear]:
        """Adds a server that gets the bodies of requests through the function."""

        def add(change: Hear) -> Hear:
            self.append(WrongServer(change.__name__, cases, hear=change))
            return change

        return add

    def does(self, *cases: str) -> Callable[[Inside], Inside]:
        """Adds a server with something replaced in it: while the function's block is open."""

        def add(change: Inside) -> Inside:
            self.append(WrongServer(change.__name__, cases, inside=change))
            return change

        return add
