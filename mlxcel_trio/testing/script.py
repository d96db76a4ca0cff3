"""The script file: what the scripted backend answers.

The file holds JSON objects, one a line; empty lines are skipped. Keys, all optional:

``when``
    Text searched in what follows the last assistant turn of the rendered prompt: user text or tool
    results. The first row that matches answers. Without it (or null) the row answers when no other does;
    without such a row the answer is empty.
``times``
    How often the row answers before it is passed over; null: always.
``emit``, ``emit_bytes``
    The answer as chunks: text, then bytes in hex. One chunk is one decode step and one token. A chunk that
    is the text of one of the tokenizer's added tokens, such as ``<|im_end|>``, is that token.
``forever``
    Repeat the chunks until the context window is full.
``prompt_ends_with``
    Text appended to the rendered prompt.
``prefill_delay``, ``delay``
    Seconds before the first chunk, and before each chunk.
``then``
    How it ends: ``stop`` (the end token is sampled), ``length`` (the last chunk meets the length limit),
    ``raise`` (this sequence fails), ``die`` (the engine thread ends), ``hang`` (the engine thread blocks in
    a step for good).

Log probabilities, where a request asks for them, are those of an answer that is certain: 0.0 for each chunk,
and whatever ``top_logprobs`` is, no alternative but the chunk itself.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from mlxcel_trio.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Seconds = Annotated[float, Meta(ge=0)]


class ScriptRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a script file."""

    when: str | None = None
    times: Annotated[int, Meta(ge=0)] | None = None
    emit: tuple[str, ...] = ()
    emit_bytes: tuple[str, ...] = ()
    forever: bool = False
    prompt_ends_with: str = ""
    prefill_delay: Seconds = 0.0
    delay: Seconds = 0.0
    then: Literal["stop", "length", "raise", "die", "hang"] = "stop"

    def __post_init__(self) -> None:
        for chunk in self.emit_bytes:
            try:
                bytes.fromhex(chunk)
            except ValueError:
                raise ValueError(f"'{chunk}' in emit_bytes is not hex") from None
        if self.forever and not self.chunks:
            raise ValueError("forever needs chunks to repeat")

    @property
    def chunks(self) -> tuple[bytes, ...]:
        """The answer, one element a token."""
        return (*(text.encode() for text in self.emit), *(bytes.fromhex(chunk) for chunk in self.emit_bytes))


class Script:
    """The rows of a script and how often each has answered. Safe to use from several threads."""

    def __init__(self, rows: Sequence[ScriptRow]) -> None:
        self.rows = tuple(rows)
        self._used: Counter[int] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path) -> Script:
        """Read a script file.

        :raises ConfigurationError: it cannot be read, or a line is not a valid row; the line is named.
        """
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigurationError(f"Cannot read the script '{path}': {error.strerror}.") from None
        rows = []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    rows.append(msgspec.json.decode(line, type=ScriptRow))
                except msgspec.MsgspecError as error:
                    raise ConfigurationError(f"{path}, line {number}: {error}.") from None
        return cls(rows)

    def peek(self, text: str) -> ScriptRow:
        """The row that would answer ``text`` now."""
        with self._lock:
            return self._match(text)[1]

    def take(self, text: str) -> ScriptRow:
        """The row that answers ``text``; counts as one use of it."""
        with self._lock:
            index, row = self._match(text)
            self._used[index] += 1
            return row

    def _match(self, text: str) -> tuple[int, ScriptRow]:
        left = [
            (index, row)
            for index, row in enumerate(self.rows)
            if row.times is None or self._used[index] < row.times
        ]
        for index, row in left:
            if row.when is not None and row.when in text:
                return index, row
        for index, row in left:
            if row.when is None:
                return index, row
        return -1, ScriptRow()
