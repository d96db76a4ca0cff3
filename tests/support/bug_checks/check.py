"""A check judges how a case was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from support.case_runner import Setup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.case_runner import CaseRun

    Judge = Callable[[CaseRun], Awaitable[None]]


class Check(NamedTuple):
    """``judge`` raises :class:`AssertionError` unless the case was answered as it should be."""

    judge: Judge
    setup: Setup


class Checks(dict[str, Check]):
    """Checks by case id. ``@checks("B001", ...)`` adds a function; what follows the id is its setup."""

    def __call__(self, case_id: str, **setup: Any) -> Callable[[Judge], Judge]:
        def add(judge: Judge) -> Judge:
            assert case_id not in self, f"{case_id} has a check already"
            self[case_id] = Check(judge, Setup(**setup))
            return judge

        return add
