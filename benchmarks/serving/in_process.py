"""mlx-lm's BatchGenerator without a server: the speed that a server can reach at best.

A process of its own, started as ``python -m benchmarks.serving.in_process DIRECTORY CHUNK END_TOKENS``. It
prints a :class:`Peer` as JSON when it is ready, and then a measurement for every workload on standard input.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from benchmarks.serving.measurement import Measurement, StreamTimes, measure
from benchmarks.serving.workload import JOIN_AFTER_TOKENS, Prompt, Workload
from mlxcel_trio.engine.mlx_runtime import import_mlx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_lm.generate import BatchGenerator


class Peer(Struct, frozen=True):
    """What the process computes with."""

    dtype: str
    blas: str


class _Row:
    """A prompt in the generator."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._sent = time.perf_counter()
        self._arrivals: list[float] = []
        self.finished = False

    @property
    def decodes(self) -> bool:
        return self.finished or len(self._arrivals) >= JOIN_AFTER_TOKENS

    def add_token(self, now: float, *, last: bool) -> None:
        self._arrivals.append(now)
        self.finished = last

    def times(self) -> StreamTimes:
        return StreamTimes(
            sent=self._sent,
            arrivals=tuple(self._arrivals),
            finished=self._arrivals[-1],
            input_tokens=len(self._prompt.tokens),
            cached_tokens=0,
            output_tokens=len(self._arrivals),
        )


class DirectRun:
    """One run of a workload on a generator that holds nothing else."""

    def __init__(self, generator: BatchGenerator, workload: Workload) -> None:
        self._generator = generator
        self._workload = workload
        self._rows: dict[int, _Row] = {}

    def run(self) -> Measurement:
        """Insert everything and step to the end."""
        streams = self._insert(self._workload.prompts)
        late: list[_Row] = []
        waiting = [] if self._workload.late is None else [self._workload.late]
        while waiting or not all(row.finished for row in self._rows.values()):
            self._step()
            if waiting and all(row.decodes for row in streams):
                late, waiting = self._insert(waiting), []
        return measure([row.times() for row in streams], late[0].times() if late else None)

    def _insert(self, prompts: Sequence[Prompt]) -> list[_Row]:
        rows = [_Row(prompt) for prompt in prompts]
        limits = [self._workload.max_tokens] * len(rows)
        uids = self._generator.insert([list(prompt.tokens) for prompt in prompts], max_tokens=limits)
        self._rows.update(zip(uids, rows, strict=True))
        return rows

    def _step(self) -> None:
        _, tokens = self._generator.next()
        now = time.perf_counter()
        for token in tokens:
            self._rows[token.uid].add_token(now, last=token.finish_reason is not None)


def main() -> None:
    """Serve standard input."""
    directory, chunk_tokens, end_tokens = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    blas = import_mlx()
    from mlx_lm.generate import BatchGenerator

    from mlxcel_trio.engine.weights import load_weights

    weights = load_weights(directory, "auto", fast_blas=not blas.slow, column_major=blas.column_major)
    generator = BatchGenerator(
        weights.model,
        stop_tokens=[[int(token)] for token in end_tokens.split(",")],
        prefill_step_size=chunk_tokens,
    )
    _say(Peer(weights.dtype, blas.name))
    for line in sys.stdin.buffer:
        _say(DirectRun(generator, msgspec.json.decode(line, type=Workload)).run())


def _say(answer: Struct) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main()
