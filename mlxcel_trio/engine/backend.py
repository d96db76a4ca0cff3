"""What the bridge needs of a model: rows in, row events out, one step at a time.

A backend is used by exactly one thread, the engine thread, from ``load`` to ``close``. It knows nothing of
trio, requests or text: a row is a prompt in token ids with its sampling, an event is a token or an end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from mlxcel_trio.core.sampling import NO_ADJUSTMENTS, LogitAdjustments, SamplingParameters

FinishReason = Literal["stop", "length"]

LogitsProcessor = Callable[[Any, Any], Any]
"""``(tokens so far, logits [1, vocabulary]) -> logits``, called on the engine thread with backend arrays."""


class LoadedModel(Struct, frozen=True):
    """What is known once the model is in memory, for the start-up report and ``/health``.

    ``context_window`` is in tokens, prompt and answer together.
    """

    context_window: int
    vocabulary_size: int
    device: str
    dtype: str
    blas: str


class Row(Struct, frozen=True):
    """A sequence to generate.

    ``prompt`` holds token ids and is never empty; ``max_tokens`` is at least 1. ``top_logprobs`` asks for log
    probabilities with that many alternatives, ``None`` for none at all. ``cache`` is a backend
    cache that already covers a prefix which ``prompt`` no longer contains. ``logits_processors`` run in
    order before sampling. Nobody waits for a ``background`` row: its prompt holds up others' tokens less.
    """

    row_id: int
    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParameters
    adjustments: LogitAdjustments = NO_ADJUSTMENTS
    top_logprobs: int | None = None
    cache: Any = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    background: bool = False


class Prefilled(Struct, frozen=True, gc=False):
    """``done`` of ``total`` prompt tokens have been processed."""

    row_id: int
    done: int
    total: int


class Logprobs(Struct, frozen=True, gc=False):
    """Natural logarithms of probabilities after adjustments and processors, before temperature.

    ``sampled`` is the drawn token's; ``top`` has (token id, value) pairs, the likeliest first.
    """

    sampled: float
    top: tuple[tuple[int, float], ...]


class Sampled(Struct, frozen=True, gc=False):
    """A token was sampled. With a ``finish_reason`` it is the row's last event and the row is gone.

    For ``stop`` the token is an end token, which has no text.
    """

    row_id: int
    token: int
    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None


class RowFailed(Struct, frozen=True):
    """The row, and only it, cannot go on; it is gone. ``message`` is one line."""

    row_id: int
    message: str


RowEvent = Prefilled | Sampled | RowFailed


class Backend(Protocol):
    """A model that can generate several rows at once.

    An exception that escapes any method ends the engine: trouble of one row is a ``RowFailed``.
    """

    def load(self) -> LoadedModel:
        """Bring the model into memory.

        :raises ModelError: it cannot be loaded.
        """
        ...

    def insert(self, row: Row) -> None:
        """Take a row; its prefill starts with the next step. Never blocks on the model."""
        ...

    def remove(self, row_id: int) -> None:
        """Drop a row at any stage; unknown ids are ignored. It has no events from now on."""
        ...

    def step(self) -> list[RowEvent]:
        """Do one unit of work: prefill for a while, a decode step for every running row, or both."""
        ...

    def close(self) -> None:
        """Free the model. Called once, also after a failed ``step``."""
        ...
