"""Cancels what runs in a nursery at each of its checkpoints in turn.

Between two checkpoints no task can be cancelled: there are as many ways to be cancelled as tasks take steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class CancelAtStep(trio.abc.Instrument):
    """Counts the steps of all tasks below ``nursery`` and cancels it as a given one begins, from 0."""

    def __init__(self, nursery: trio.Nursery, step: int) -> None:
        self._nursery = nursery
        self._step = step
        self._steps = 0

    @property
    def reached(self) -> bool:
        """Whether the step came."""
        return self._steps > self._step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See :class:`trio.abc.Instrument`."""
        if self._is_below(task):
            if self._steps == self._step:
                self._nursery.cancel_scope.cancel()
            self._steps += 1

    def _is_below(self, task: trio.lowlevel.Task) -> bool:
        nursery = task.parent_nursery
        while nursery is not None and nursery is not self._nursery:
            nursery = nursery.parent_task.parent_nursery
        return nursery is not None


async def cancelled_at(step: int, scenario: Callable[[], Awaitable[object]]) -> bool:
    """Run ``scenario`` in a nursery that is cancelled at ``step``; whether it came to that."""
    async with trio.open_nursery() as nursery:
        cancel = CancelAtStep(nursery, step)
        trio.lowlevel.add_instrument(cancel)
        nursery.start_soon(scenario)
    trio.lowlevel.remove_instrument(cancel)
    return cancel.reached
