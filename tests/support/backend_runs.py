"""Driving a backend step by step and collecting what its rows produce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mlxcel_trio.core.sampling import SamplingParameters
from mlxcel_trio.engine.backend import Prefilled, Row, RowEvent, Sampled

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_trio.engine.backend import FinishReason

GREEDY = SamplingParameters(temperature=0)


class Steppable(Protocol):
    """What a run needs of a backend."""

    def insert(self, row: Row) -> None: ...
    def remove(self, row_id: int) -> None: ...
    def step(self) -> list[RowEvent]: ...


@dataclass
class Outcome:
    """All that was heard of one row.

    Outcomes are equal when their answers are. ``progress``, in (done, total) prompt tokens, shows how the
    prompt was cut, which depends on the company.
    """

    tokens: list[int] = field(default_factory=list)
    progress: list[tuple[int, int]] = field(default_factory=list, compare=False)
    finish_reason: FinishReason | None = None
    failure: str | None = None

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None or self.failure is not None

    def record(self, event: RowEvent) -> None:
        assert not self.ended, f"{event} after the end"
        if isinstance(event, Prefilled):
            assert not self.tokens
            before = self.progress[-1][0] if self.progress else 0
            assert before < event.done <= event.total
            self.progress.append((event.done, event.total))
        elif isinstance(event, Sampled):
            done, total = self.progress[-1]
            assert done == total, f"{event} before the end of the prompt"
            self.tokens.append(event.token)
            self.finish_reason = event.finish_reason
        else:
            self.failure = event.message


class BackendRun:
    """Rows on a backend. An event of a row that is unknown, removed or at its end fails the test."""

    def __init__(self, backend: Steppable) -> None:
        self._backend = backend
        self.outcomes: dict[int, Outcome] = {}

    def insert(self, *rows: Row) -> None:
        for row in rows:
            self.outcomes[row.row_id] = Outcome()
            self._backend.insert(row)

    def remove(self, row_id: int) -> Outcome:
        self._backend.remove(row_id)
        return self.outcomes.pop(row_id)

    def step(self) -> list[RowEvent]:
        events = self._backend.step()
        for event in events:
            self.outcomes[event.row_id].record(event)
        return events

    def until(self, condition: Callable[[dict[int, Outcome]], bool], *, max_steps: int = 1000) -> None:
        for _ in range(max_steps):
            if condition(self.outcomes):
                return
            self.step()
        raise AssertionError(f"not within {max_steps} steps: {self.outcomes}")

    def finish(self) -> dict[int, Outcome]:
        """Step until every row has ended; then nothing is left to do."""
        self.until(lambda outcomes: all(outcome.ended for outcome in outcomes.values()))
        assert self._backend.step() == []
        return self.outcomes


def generate(backend: Steppable, *rows: Row) -> list[Outcome]:
    """Run rows together to their ends; outcomes in the order of the rows."""
    run = BackendRun(backend)
    run.insert(*rows)
    outcomes = run.finish()
    return [outcomes[row.row_id] for row in rows]


def generate_apart(backend: Steppable, *rows: Row) -> list[Outcome]:
    """Run rows one after the other."""
    return [outcome for row in rows for outcome in generate(backend, row)]
