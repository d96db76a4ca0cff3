"""Any order of requests, polls, cancels, deletes, engine events and time, against a model.

The service room runs on a fake engine and a mock clock; after each operation everything is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.job_machine import Machine
from support.job_operations import BOUNDS, Operation, operations

if TYPE_CHECKING:
    from support.job_model import Bounds


async def run_machine(bounds: Bounds, operations: list[Operation], *, to_the_end: bool) -> None:
    """All operations, and then the end: of every response, or of the server."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    machine = Machine(bounds, clock)
    with capture_logs() as logs:
        async with machine.bench.open(), trio.open_nursery() as machine.nursery:
            for operation in operations:
                await machine.apply(operation)
            if to_the_end:
                await machine.finish()
            machine.nursery.cancel_scope.cancel()
        for asked in machine.model.queue:
            machine.assert_missing(machine.bench.poll, asked.id)
    ends = sorted(log["response_id"] for log in logs if log["event"] == "job")
    assert ends == sorted(asked.id for asked in machine.model.asked.values() if asked.background)


@settings(deadline=None, max_examples=150)
@given(bounds=BOUNDS, operations=operations(), to_the_end=st.booleans())
def test_any_order(bounds: Bounds, operations: list[Operation], to_the_end: bool) -> None:
    async def main() -> None:
        await run_machine(bounds, operations, to_the_end=to_the_end)

    trio.run(main, clock=trio.testing.MockClock())
