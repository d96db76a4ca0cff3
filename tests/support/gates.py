"""Holding a scripted engine, or the rendering of prompts, until a test says so."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.served import LIMIT_SECONDS, Served

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from mlxcel_trio.engine.backend import RowEvent
    from mlxcel_trio.engine.tokenizer import RenderedPrompt


class Gate:
    """Lets the engine thread do one step, or any number of them, when the test says so."""

    def __init__(self) -> None:
        self._steps = threading.Semaphore(0)
        self._open = threading.Event()

    def let(self, steps: int = 1) -> None:
        """Let so many steps happen."""
        self._steps.release(steps)

    def open(self) -> None:
        """Hold no step any more."""
        self._open.set()
        self._steps.release()

    def pass_through(self) -> None:
        """Called by the engine thread before a step."""
        if not self._open.is_set():
            assert self._steps.acquire(timeout=LIMIT_SECONDS)


@contextmanager
def held_steps(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Hold every step of the engine; none is held after the block."""
    gate = Gate()
    step = served.engine.backend.step

    def step_when_let() -> list[RowEvent]:
        gate.pass_through()
        return step()

    monkeypatch.setattr(served.engine.backend, "step", step_when_let)
    try:
        yield gate
    finally:
        gate.open()


@contextmanager
def held_rendering(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold every rendering of a prompt until the event is set, which the end of the block does."""
    may_go_on = threading.Event()
    render = served.engine.tokenizer.render

    def render_when_let(*args: Any, **kwargs: Any) -> RenderedPrompt:
        assert may_go_on.wait(LIMIT_SECONDS)
        return render(*args, **kwargs)

    monkeypatch.setattr(served.engine.tokenizer, "render", render_when_let)
    try:
        yield may_go_on
    finally:
        may_go_on.set()
