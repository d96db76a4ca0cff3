"""A backend that plays a script. It runs on the real engine thread behind the real bridge."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from mlxcel_trio.engine.api import Engine
from mlxcel_trio.engine.backend import LoadedModel, Logprobs, Prefilled, Row, RowEvent, RowFailed, Sampled
from mlxcel_trio.testing.scripted_tokenizer import ScriptedTokenizer, load_scripted_tokenizer

if TYPE_CHECKING:
    from mlxcel_trio.testing.script import Script, ScriptRow

# How long a step may take while every row waits for its delay: what a short prefill chunk takes.
LONGEST_STEP_SECONDS = 0.005

DEFAULT_CONTEXT_WINDOW = 8192


def scripted_engine(
    script: Script, *, context_window: int | None = None, decode_timeout: float = math.inf
) -> Engine:
    """An engine that answers from ``script``; the window is 8192 tokens unless said otherwise."""

    def load() -> tuple[ScriptedTokenizer, ScriptedBackend]:
        tokenizer = load_scripted_tokenizer(script)
        window = context_window or DEFAULT_CONTEXT_WINDOW
        return tokenizer, ScriptedBackend(script, tokenizer, context_window=window)

    return Engine(load, decode_timeout=decode_timeout)


class ScriptedBackend:
    """Answers each row with the script row that matches its prompt, one chunk a step.

    Sampling parameters, caches and logits processors have no effect on it. A script leaves nothing to chance:
    where log probabilities are asked for, each token's is 0.0, and the only alternative is the token itself.
    """

    def __init__(self, script: Script, tokenizer: ScriptedTokenizer, *, context_window: int) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._context_window = context_window
        self._rows: dict[int, _PlayedRow] = {}

    def load(self) -> LoadedModel:
        """Nothing to load."""
        return LoadedModel(
            context_window=self._context_window,
            vocabulary_size=self._tokenizer.vocabulary_size,
            device="script",
            dtype="none",
            blas="none",
        )

    def insert(self, row: Row) -> None:
        """Choose the answer."""
        text = self._tokenizer.last_user_text(row.prompt)
        self._rows[row.row_id] = _PlayedRow(row, self._script.take(text), self._tokenizer)

    def remove(self, row_id: int) -> None:
        """Drop a row."""
        self._rows.pop(row_id, None)

    def step(self) -> list[RowEvent]:
        """One chunk of every row that is due; waits a little when none is."""
        now = time.monotonic()
        events = [row.play(now) for row in self._rows.values() if row.due_at <= now]
        for event in events:
            if isinstance(event, RowFailed) or (isinstance(event, Sampled) and event.finish_reason):
                del self._rows[event.row_id]
        if not events and self._rows:
            time.sleep(min(LONGEST_STEP_SECONDS, min(row.due_at for row in self._rows.values()) - now))
        return events

    def close(self) -> None:
        """Forget everything."""
        self._rows.clear()


class _PlayedRow:
    """One row and how far its answer has been played."""

    def __init__(self, row: Row, answer: ScriptRow, tokenizer: ScriptedTokenizer) -> None:
        self._row = row
        self._answer = answer
        self._end_tokens = tokenizer.end_tokens
        self._tokens = deque(tokenizer.chunk_token(chunk) for chunk in answer.chunks)
        self._prefilled = False
        self._sampled = 0
        self.due_at = time.monotonic() + answer.prefill_delay

    def play(self, now: float) -> RowEvent:
        """The next event of this row."""
        if not self._prefilled:
            self._prefilled = True
            self.due_at = now + self._answer.delay
            return Prefilled(self._row.row_id, len(self._row.prompt), len(self._row.prompt))
        self.due_at = now + self._answer.delay
        if not self._tokens:
            return self._end()
        token = self._tokens.popleft()
        if self._answer.forever:
            self._tokens.append(token)
        return self._sample(token, last=not self._tokens and self._answer.then == "length")

    def _sample(self, token: int, *, last: bool = False) -> Sampled:
        self._sampled += 1
        logprobs = _certainty(token, self._row.top_logprobs)
        if token in self._end_tokens:
            return Sampled(self._row.row_id, token, "stop", logprobs)
        full = last or self._sampled >= self._row.max_tokens
        return Sampled(self._row.row_id, token, "length" if full else None, logprobs)

    def _end(self) -> RowEvent:
        match self._answer.then:
            case "raise":
                return RowFailed(self._row.row_id, "the script says so")
            case "die":
                raise RuntimeError("the script ends the engine thread")
            case "hang":
                threading.Event().wait()
        # "stop"; and "length" of an answer without chunks, which has no last chunk to carry it.
        return self._sample(min(self._end_tokens))


def _certainty(token: int, top_logprobs: int | None) -> Logprobs | None:
    if top_logprobs is None:
        return None
    return Logprobs(0.0, ((token, 0.0),) if top_logprobs else ())
