"""Background responses: tasks that live longer than the requests that created them."""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any

import trio
from structlog.contextvars import bound_contextvars, get_contextvars

from mlxcel_trio.log import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mlxcel_trio.service.pipeline import ResponseRun

log = get_logger(__name__)


class Jobs:
    """The jobs nursery. Every job is a task in it that opens a nursery of its own.

    A job ends by itself, by a cancel of its response, or with the nursery; one that fails touches no other.
    """

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._entering: deque[Callable[[], None]] = deque()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Take jobs while the block is open. Leaving it cancels those that are left."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                yield
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    def start(self, run: ResponseRun, enter_queue: Callable[[], None]) -> None:
        """Run a response to its end, whoever waits for it or not. Never waits.

        :param enter_queue: called when a task starts, for all jobs in the order of ``start``.
        :raises RuntimeError: outside of :meth:`open`.
        """
        if self._nursery is None:
            raise RuntimeError("Jobs are not running. Start them inside 'async with jobs.open()'.")
        self._entering.append(enter_queue)
        # In a context of its own: the present one would keep the request and its body alive.
        Context().run(self._nursery.start_soon, self._run, run, get_contextvars())

    async def _run(self, run: ResponseRun, log_context: dict[str, Any]) -> None:
        # trio starts tasks of one tick in any order; places in the queue go by order of creation.
        while self._entering:
            self._entering.popleft()()
        unfinished = "server_stopped"
        with bound_contextvars(**log_context):
            try:
                async with run.open() as events:
                    async for _ in events:
                        pass
            except Exception:
                unfinished = "server_error"
                log.exception("job_failed", response_id=run.response_id)
            finally:
                _log_end(run, unfinished)


def _log_end(run: ResponseRun, unfinished: str) -> None:
    """``unfinished``: why it ended, if it did without a terminal status."""
    response, figures = run.response, run.figures
    reason = None
    if response.status in ("queued", "in_progress"):
        reason = unfinished
    elif response.error is not None:
        reason = response.error.code
    elif response.incomplete_details is not None:
        reason = response.incomplete_details.reason
    log.info(
        "job",
        response_id=response.id,
        status=response.status,
        queued_seconds=round(figures.queued_seconds, 3),
        prefill_tokens=figures.prefill_tokens,
        decode_tokens=figures.decode_tokens,
        reason=reason,
    )
