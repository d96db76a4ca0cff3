"""A scripted engine that remembers what reached its thread, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from mlxcel_trio.engine.api import Engine
from mlxcel_trio.engine.bridge import EngineBridge
from mlxcel_trio.testing.script import Script, ScriptRow
from mlxcel_trio.testing.scripted_backend import ScriptedBackend, scripted_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcel_trio.engine.api import Tokenizer
    from mlxcel_trio.engine.backend import LoadedModel, Row, RowEvent


class WatchedBackend:
    """A backend that keeps the prompts it was given and counts steps.

    ``removed`` has the number of steps begun when each row was taken out.
    """

    def __init__(self, backend: ScriptedBackend) -> None:
        self._backend = backend
        self.prompts: list[Sequence[int]] = []
        self.steps_begun = 0
        self.removed: dict[int, int] = {}

    def load(self) -> LoadedModel:
        return self._backend.load()

    def insert(self, row: Row) -> None:
        self.prompts.append(row.prompt)
        self._backend.insert(row)

    def remove(self, row_id: int) -> None:
        self.removed[row_id] = self.steps_begun
        self._backend.remove(row_id)

    def step(self) -> list[RowEvent]:
        self.steps_begun += 1
        return self._backend.step()

    def close(self) -> None:
        self._backend.close()


class WatchedBridge(EngineBridge):
    """A bridge that keeps the number of steps begun when each row was dropped."""

    def __init__(self, backend: WatchedBackend) -> None:
        super().__init__(backend)
        self._watched = backend
        self.dropped: dict[int, int] = {}

    def remove_nowait(self, row_id: int) -> None:
        super().remove_nowait(row_id)
        self.dropped[row_id] = self._watched.steps_begun


class WatchedEngine(Engine):
    """See the module."""

    def __init__(self, *rows: ScriptRow, context_window: int | None = None) -> None:
        super().__init__(self._load_watched)
        self._load_scripted = scripted_engine(Script(rows), context_window=context_window)._load
        self._watched: WatchedBackend | None = None

    def _load_watched(self) -> tuple[Tokenizer, WatchedBackend]:
        tokenizer, backend = self._load_scripted()
        assert isinstance(backend, ScriptedBackend)
        self._watched = WatchedBackend(backend)
        return tokenizer, self._watched

    async def run(self, *, task_status: trio.TaskStatus[LoadedModel] = trio.TASK_STATUS_IGNORED) -> None:
        self._tokenizer, _ = await trio.to_thread.run_sync(self._load)
        self._bridge = WatchedBridge(self.backend)
        await self._bridge.run(task_status=task_status)

    @property
    def backend(self) -> WatchedBackend:
        """What runs on the engine thread."""
        assert self._watched is not None
        return self._watched

    def prompts(self) -> list[str]:
        """The rendered prompts so far, as text with their markup."""
        detokenizers = [(self.tokenizer.detokenizer(), prompt) for prompt in self.backend.prompts]
        return [
            "".join([*map(detokenizer.feed, prompt), detokenizer.finish()])
            for detokenizer, prompt in detokenizers
        ]

    def removal_lags(self) -> list[int]:
        """For each row that was taken out before its end: the steps begun between the drop and that.

        1 is a step that was in progress, or about to begin, when the row was dropped.
        """
        assert isinstance(self._bridge, WatchedBridge)
        dropped = self._bridge.dropped
        return [steps - dropped[row_id] for row_id, steps in self.backend.removed.items()]
