"""Interrupts what runs in a nursery at each of its checkpoints in turn.

Between two checkpoints of its tasks nothing else can happen: there are as many ways to be interrupted as
tasks take steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class InterruptAtStep(trio.abc.Instrument):
    """Counts the steps of all tasks below ``nursery`` and interrupts as a given one begins, from 0."""

    def __init__(self, nursery: trio.Nursery, step: int, interrupt: Callable[[], object]) -> None:
        self._nursery = nursery
        self._step = step
        self._interrupt = interrupt
        self._steps = 0
        self.error: BaseException | None = None
        """What the interrupt raised; trio would only log it."""

    @property
    def reached(self) -> bool:
        """Whether the step came."""
        return self._steps > self._step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See :class:`trio.abc.Instrument`."""
        if self._is_below(task):
            if self._steps == self._step:
                try:
                    self._interrupt()
                except BaseException as error:
                    self.error = error
            self._steps += 1

    def _is_below(self, task: trio.lowlevel.Task) -> bool:
        nursery = task.parent_nursery
        while nursery is not None and nursery is not self._nursery:
            nursery = nursery.parent_task.parent_nursery
        return nursery is not None


async def interrupted_at(
    step: int, scenario: Callable[[], Awaitable[object]], interrupt: Callable[[trio.CancelScope], object]
) -> bool:
    """Run ``scenario`` in a nursery; whether it came to ``step``, where ``interrupt`` gets its cancel scope.

    What ``interrupt`` raises is raised at the end.
    """
    async with trio.open_nursery() as nursery:
        at_step = InterruptAtStep(nursery, step, lambda: interrupt(nursery.cancel_scope))
        trio.lowlevel.add_instrument(at_step)
        nursery.start_soon(scenario)
    trio.lowlevel.remove_instrument(at_step)
    if at_step.error is not None:
        raise at_step.error
    return at_step.reached


async def cancelled_at(step: int, scenario: Callable[[], Awaitable[object]]) -> bool:
    """Run ``scenario`` in a nursery that is cancelled at ``step``; whether it came to that."""
    return await interrupted_at(step, scenario, trio.CancelScope.cancel)
