"""How long the operations of the store take behind histories of several lengths."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from benchmarks.store_cost.chains import Chains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Argument = TypeVar("Argument")

TEXT_BYTES = 500
OPERATIONS = ("keep", "retrieve", "history", "continue_dialogue")


class Timing(Struct, frozen=True):
    """One operation in one round. ``length`` is the number of responses in the chain it goes on from."""

    round: int
    length: int
    operation: str
    microseconds: float


def measure(lengths: Sequence[int], *, calls: int, rounds: int) -> Iterator[Timing]:
    """Time every operation behind every chain, ``calls`` times in a row, round after round.

    What goes through a whole history is called less often, but ten times at least.
    """
    prepared = [_Chain(length, calls) for length in lengths]
    for number in range(rounds + 1):
        for chain in prepared:
            for operation, microseconds in chain.time():
                if number:  # the first round warms up
                    yield Timing(number, chain.length, operation, microseconds)


class _Chain:
    """A chain in a store of its own, to be measured at its end."""

    def __init__(self, length: int, calls: int) -> None:
        self.length = length
        self._calls = calls
        self._chains = Chains(TEXT_BYTES)
        self._last = self._chains.grow(length)
        self._history = self._chains.stored.history(None, self._last)

    def time(self) -> Iterator[tuple[str, float]]:
        """Microseconds of each operation; the store is as before afterwards."""
        stored = self._chains.stored
        turns = [self._chains.turn(self._history) for _ in range(self._calls)]
        yield "keep", _microseconds(self._chains.keep, turns)
        for turn in turns:
            stored.delete(None, turn.response.id)
        yield "retrieve", _microseconds(partial(stored.retrieve, None), [self._last] * self._calls)
        yield "history", _microseconds(partial(stored.history, None), [self._last] * self._calls)
        times = max(10, self._calls // self.length)
        yield "continue_dialogue", _microseconds(self._chains.continue_from, [self._history] * times)


def _microseconds(call: Callable[[Argument], object], arguments: Sequence[Argument]) -> float:
    """Mean time of one call."""
    started = time.perf_counter()
    for argument in arguments:
        call(argument)
    return (time.perf_counter() - started) * 1e6 / len(arguments)
