"""The engine thread: one thread that owns the backend for its whole life, and its hand-off to trio.

MLX arrays belong to the thread that made them, so loading, every step and freeing happen on one thread,
run by one long ``trio.to_thread.run_sync``. Commands go in through a deque under a condition and never
block trio. Results come out with one ``TrioToken.run_sync_soon`` per step, carrying the events of all rows.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Literal

import trio

from mlxcel_trio.engine.backend import Backend, LoadedModel, Row, RowEvent, RowFailed, Sampled
from mlxcel_trio.errors import EngineFailureError, EngineUnavailableError, MlxcelError
from mlxcel_trio.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

EngineState = Literal["loading", "running", "hanging", "stopped"]
"""``hanging``: a step has taken longer than it may; if it ends after all, the engine is running again."""

UNAVAILABLE: dict[EngineState, str] = {
    "loading": "The engine is still loading; try again shortly.",
    "hanging": "The engine hangs in a step. Restart the server if that lasts.",
    "stopped": "The engine has stopped. Restart the server.",
}


GATHER_SECONDS = 0.05
GATHER_PAUSE_SECONDS = 0.008
"""An idle engine that gets a row waits for more until none has come for the pause, or so long in all."""

STOP_WARNING_SECONDS = 10.0
"""How long a stop may wait for the step in progress before whoever waits for it is told why."""

log = get_logger(__name__)


class EngineBridge:
    """Runs a backend on the engine thread and routes its row events.

    All methods are called from the trio thread, except those whose names begin with ``_on_engine``: they
    run on the engine thread. ``steps`` counts finished engine steps, ``sampled_tokens`` the tokens they
    gave.
    """

    def __init__(self, backend: Backend, *, decode_timeout: float = math.inf) -> None:
        """``decode_timeout``: seconds after which a step that has not ended counts as hanging."""
        self._backend = backend
        self._decode_timeout = decode_timeout
        self.state: EngineState = "loading"
        self.steps = 0
        self.sampled_tokens = 0
        self._model: LoadedModel | None = None
        self._routes: dict[int, Callable[[RowEvent], None]] = {}
        self._leaving: set[int] = set()
        self._drained = trio.Event()
        self._drained.set()
        self._wake = threading.Condition()
        self._commands: deque[Row | int] = deque()
        self._stop = False
        self._stopping = trio.CancelScope(shield=True)
        # Written by the engine thread: when the step in progress began, by the clock of time.monotonic().
        self._busy_since: float | None = None

    async def run(self, *, task_status: trio.TaskStatus[LoadedModel] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the model, report it, and step until cancelled or until the backend fails.

        A cancel takes effect at the end of the step in progress; the thread is always joined. However it
        ends, every row is settled with ``RowFailed`` first. So it is when a step hangs.

        :raises ModelError, ConfigurationError: the model could not be loaded.
        :raises EngineFailureError: the backend failed while generating.
        """
        token = trio.lowlevel.current_trio_token()

        def loaded(model: LoadedModel) -> None:
            self.state = "running"
            self._model = model
            task_status.started(model)

        failure: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_thread_when_cancelled)
                nursery.start_soon(self._watch_for_hangs)
                limiter = trio.CapacityLimiter(1)
                try:
                    failure = await trio.to_thread.run_sync(
                        self._on_engine_thread, token, loaded, limiter=limiter
                    )
                finally:  # a cancel may come before the thread has begun
                    self._stopping.cancel()
                nursery.cancel_scope.cancel()
        finally:
            self.state = "stopped"
            self._settle("the engine has stopped")
            self._leaving.clear()
            self._drained.set()
        if isinstance(failure, MlxcelError):
            raise failure
        if failure is not None:
            raise EngineFailureError(f"The engine stopped: {failure!r}") from failure

    def check_running(self) -> None:
        """Return if rows are taken now.

        :raises EngineUnavailableError: the engine is loading or has stopped.
        """
        if self.state != "running":
            raise EngineUnavailableError(UNAVAILABLE[self.state])

    def insert_nowait(self, row: Row, deliver: Callable[[RowEvent], None]) -> None:
        """Hand a row to the engine. ``deliver`` is called in the trio thread and must not raise.

        :raises EngineUnavailableError: the engine is loading or has stopped.
        """
        self.check_running()
        if self._drained.is_set():
            self._drained = trio.Event()
        self._routes[row.row_id] = deliver
        self._command(row)

    def remove_nowait(self, row_id: int) -> None:
        """Drop a row at any stage: no event of it is delivered from now on.

        The engine lets go of it by the end of the step in progress. Rows that have ended are ignored.
        """
        if self._routes.pop(row_id, None) is not None:
            self._leaving.add(row_id)
            self._command(row_id)

    async def wait_drained(self) -> None:
        """Wait until the engine holds no row."""
        await self._drained.wait()

    @property
    def model(self) -> LoadedModel:
        """What is known of the loaded model.

        :raises EngineUnavailableError: it is still loading.
        """
        if self._model is None:
            raise EngineUnavailableError(UNAVAILABLE["loading"])
        return self._model

    @property
    def rows(self) -> int:
        """Rows in the backend, or on their way in or out."""
        return len(self._routes) + len(self._leaving)

    def _command(self, command: Row | int) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    async def _stop_thread_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with self._wake:
                self._stop = True
                self._wake.notify()
            with self._stopping:
                await trio.sleep(STOP_WARNING_SECONDS)
                log.warning(
                    "engine_stop_waits", reason="A step of the model has not ended; it is waited for."
                )

    async def _watch_for_hangs(self) -> None:
        while math.isfinite(self._decode_timeout):
            since = self._busy_since
            left = self._decode_timeout if since is None else since + self._decode_timeout - time.monotonic()
            if left <= 0:
                self._hang()
                left = self._decode_timeout
            await trio.sleep(left)

    def _hang(self) -> None:
        self.state = "hanging"
        row_ids = list(self._routes)
        self._settle("the engine hangs")
        # Should the step end after all, these rows are not to go on.
        self._leaving.update(row_ids)
        for row_id in row_ids:
            self._command(row_id)

    def _on_engine_thread(
        self, token: trio.lowlevel.TrioToken, loaded: Callable[[LoadedModel], None]
    ) -> Exception | None:
        try:
            try:
                token.run_sync_soon(loaded, self._backend.load())
                self._on_engine_loop(token)
            finally:
                self._backend.close()
        except Exception as failure:
            return failure
        return None

    def _on_engine_loop(self, token: trio.lowlevel.TrioToken) -> None:
        active: set[int] = set()
        while True:
            with self._wake:
                if not active:
                    self._on_engine_idle()
                if self._stop:
                    return
                commands = list(self._commands)
                self._commands.clear()
            self._busy_since = time.monotonic()
            if removed := self._on_engine_apply(commands, active):
                token.run_sync_soon(self._on_removed, removed)
            if active:
                events = self._backend.step()
                active.difference_update(event.row_id for event in events if _ends_row(event))
                token.run_sync_soon(self._on_stepped, events)
            self._busy_since = None

    def _on_engine_idle(self) -> None:
        """Wait for commands. Rows seldom come alone: what follows the first at once can prefill with it."""
        while not (self._commands or self._stop):
            self._wake.wait()
        deadline = time.monotonic() + GATHER_SECONDS
        while not self._stop and time.monotonic() < deadline and self._wake.wait(GATHER_PAUSE_SECONDS):
            pass  # one more has come

    def _on_engine_apply(self, commands: list[Row | int], active: set[int]) -> list[int]:
        removed = []
        for command in commands:
            if isinstance(command, Row):
                self._backend.insert(command)
                active.add(command.row_id)
            else:
                self._backend.remove(command)
                active.discard(command)
                removed.append(command)
        return removed

    def _on_removed(self, row_ids: list[int]) -> None:
        self._leaving.difference_update(row_ids)
        self._notice_drained()

    def _on_stepped(self, events: list[RowEvent]) -> None:
        self.steps += 1
        if self.state == "hanging":
            self.state = "running"
        for event in events:
            self.sampled_tokens += isinstance(event, Sampled)
            self._deliver(event)
        self._notice_drained()

    def _notice_drained(self) -> None:
        if self.rows == 0:
            self._drained.set()

    def _deliver(self, event: RowEvent) -> None:
        deliver = self._routes.get(event.row_id)
        if deliver is None:  # dropped while the step was running
            return
        if _ends_row(event):
            del self._routes[event.row_id]
        deliver(event)

    def _settle(self, message: str) -> None:
        for row_id in list(self._routes):
            self._deliver(RowFailed(row_id, message))


def _ends_row(event: RowEvent) -> bool:
    return isinstance(event, RowFailed) or (isinstance(event, Sampled) and event.finish_reason is not None)
