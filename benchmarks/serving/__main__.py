"""``python -m benchmarks.serving``: measure, and write a table and all figures."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from benchmarks.arguments import at_least, list_of
from benchmarks.report import RESULTS_DIRECTORY, Surroundings, look_around, usable_cores, write_report
from benchmarks.serving.model import BenchmarkModel
from benchmarks.serving.summary import Result, Results, tables
from benchmarks.serving.systems import (
    IN_PROCESS,
    LLAMA_CPP,
    MLX_LM_SERVER,
    OPENERS,
    OURS,
    Conditions,
    System,
)
from benchmarks.serving.workload import JOIN_AFTER_TOKENS, PromptWriter, Workload, streams_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.serving.measurement import Measurement

STREAMS_BEFORE_LATE_PROMPT = 4
RUN_LIMIT_SECONDS = 600.0
"""A run that takes longer ends the benchmark: its system hangs."""


class Options(Struct, frozen=True, kw_only=True):
    """The command line."""

    model: str | None
    gguf: Path | None
    systems: tuple[str, ...]
    streams: tuple[int, ...]
    rounds: int
    new_tokens: int
    prompt_tokens: int
    long_prompt_tokens: int
    prefill_chunk_size: int
    llama_threads: int
    output: Path

    @property
    def parallel(self) -> int:
        """The most streams at once."""
        return max(*self.streams, STREAMS_BEFORE_LATE_PROMPT + 1)


class Benchmark:
    """``systems`` on workloads written by ``writer``, round after round."""

    def __init__(self, options: Options, systems: Sequence[System], writer: PromptWriter) -> None:
        self._options = options
        self._systems = systems
        self._writer = writer

    async def run(self) -> list[Result]:
        """Warm up, say how long it will take, measure."""
        expected = await self._warm_up()
        _say(f"All rounds will take about {_minutes(expected)}.")
        results: list[Result] = []
        begun = time.monotonic()
        for number in range(1, self._options.rounds + 1):
            # New prompts in every round, the same for all systems.
            for workload in self._workloads():
                for system in self._in_order(number):
                    measurement = await _run_within_limit(system, workload)
                    results.append(Result(number, workload.name, system.name, measurement))
                    _say(_line(number, workload, system, measurement))
            left = (time.monotonic() - begun) / number * (self._options.rounds - number)
            _say(f"Round {number} of {self._options.rounds} done; about {_minutes(left)} left.")
        return results

    def _in_order(self, number: int) -> Sequence[System]:
        """There and back, so that no system always follows the same other one."""
        return self._systems if number % 2 else self._systems[::-1]

    async def _warm_up(self) -> float:
        """One request to each system; returns the seconds that all rounds may take."""
        one_stream = self._workload("warm-up", 1)
        expected = 0.0
        for system in self._systems:
            measurement = await _run_within_limit(system, one_stream)
            per_round = sum(_expected_seconds(measurement, workload) for workload in self._workloads())
            expected += per_round * self._options.rounds
        return expected

    def _workloads(self) -> list[Workload]:
        options = self._options
        plain = [self._workload(streams_at_once(count), count) for count in options.streams]
        if not options.long_prompt_tokens:
            return plain
        name = f"{options.long_prompt_tokens} tokens join {streams_at_once(STREAMS_BEFORE_LATE_PROMPT)}"
        return [*plain, self._workload(name, STREAMS_BEFORE_LATE_PROMPT, late=options.long_prompt_tokens)]

    def _workload(self, name: str, streams: int, *, late: int = 0) -> Workload:
        return Workload(
            name=name,
            prompts=tuple(self._writer.write(self._options.prompt_tokens) for _ in range(streams)),
            late=self._writer.write(late) if late else None,
            max_tokens=self._options.new_tokens,
        )


async def _run_within_limit(system: System, workload: Workload) -> Measurement:
    try:
        with trio.fail_after(RUN_LIMIT_SECONDS):
            return await system.run(workload)
    except Exception as error:
        error.add_note(f"while {system.name} ran {workload.name}")
        raise


def _expected_seconds(one_stream: Measurement, workload: Workload) -> float:
    """Roughly: prompts as fast as one, and decode steps that take twice as long with 16 rows as with one."""
    prefill = one_stream.ttft_median / 1000
    step = (one_stream.seconds - prefill) / max(1, one_stream.output_tokens - 1)
    prompts = workload.prompt_tokens / one_stream.input_tokens
    return prefill * prompts + step * workload.max_tokens * (1 + len(workload.prompts) / 16)


async def measure(options: Options, model: BenchmarkModel, logs: Path) -> tuple[list[System], list[Result]]:
    """Start every system, measure, end them."""
    conditions = Conditions(
        model=model,
        parallel=options.parallel,
        context_tokens=max(options.prompt_tokens, options.long_prompt_tokens) * 2 + options.new_tokens,
        prefill_chunk_size=options.prefill_chunk_size,
        llama_threads=options.llama_threads,
        logs=logs,
    )
    systems: list[System] = []
    async with AsyncExitStack() as opened:
        for name in options.systems:
            if name == LLAMA_CPP and not model.has_gguf:
                _say(f"{LLAMA_CPP} is left out: name a GGUF file of this model with --gguf.")
                continue
            _say(f"Starting {name}")
            systems.append(await opened.enter_async_context(OPENERS[name](conditions)))
        results = await Benchmark(options, systems, PromptWriter(model.tokenizer)).run()
    return systems, results


def main() -> None:
    """Parse, measure, write."""
    options = parse_options(sys.argv[1:])
    surroundings = look_around()
    with tempfile.TemporaryDirectory(prefix="mlxcel-benchmark-") as work:
        model = BenchmarkModel(options.model, gguf_file=options.gguf, work=Path(work))
        systems, results = trio.run(measure, options, model, Path(work))
    for path in _write(options, surroundings, model, systems, results):
        _say(f"Written: {path}")


def _write(
    options: Options,
    surroundings: Surroundings,
    model: BenchmarkModel,
    systems: Sequence[System],
    results: Sequence[Result],
) -> list[Path]:
    settings = {
        "model": model.name,
        "rounds": options.rounds,
        "streams": options.streams,
        "new tokens": options.new_tokens,
        "prompt tokens": options.prompt_tokens,
        "prefill chunk": options.prefill_chunk_size,
        "systems": [f"{system.name} ({system.description})" for system in systems],
    }
    summed_up = Results(results)
    figures = {
        "summaries": summed_up.summaries(),
        "comparisons": summed_up.comparisons(),
        "results": results,
    }
    return write_report(
        "serving",
        surroundings,
        settings=settings,
        tables=tables(summed_up),
        figures=figures,
        directory=options.output,
    )


def parse_options(argv: Sequence[str]) -> Options:
    """Read the command line; ends the process when it is wrong."""
    systems = [OURS, IN_PROCESS, MLX_LM_SERVER]
    if importlib.util.find_spec("xllamacpp") is not None:
        systems.append(LLAMA_CPP)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving",
        description="Compare this server with its peers on the same weights.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", help="as for mlxcel serve; default: the demo model")
    add("--gguf", type=Path, help="the same model for llama.cpp; fetched for the demo model")
    add(
        "--systems",
        type=list_of(_system),
        default=tuple(systems),
        help=f"comma-separated: {', '.join(OPENERS)}",
    )
    add(
        "--streams",
        type=list_of(at_least(1)),
        default=(1, 4, 8, 16),
        help="streams at once, comma-separated",
    )
    add("--rounds", type=at_least(1), default=5, help="rounds of all workloads on all systems")
    add("--new-tokens", type=at_least(1), default=64, help="tokens per answer")
    add("--prompt-tokens", type=at_least(1), default=59, help="tokens per prompt, template included")
    add(
        "--long-prompt-tokens",
        type=at_least(0),
        default=820,
        help="tokens of the late prompt; 0 leaves it out",
    )
    add("--prefill-chunk-size", type=at_least(1), default=128, help="tokens, for all systems")
    add("--llama-threads", type=at_least(1), default=max(1, usable_cores() - 1), help="for llama.cpp")
    add("--output", type=Path, default=RESULTS_DIRECTORY, help="directory for the results")
    options = Options(**vars(parser.parse_args(argv)))
    if options.long_prompt_tokens and options.new_tokens <= JOIN_AFTER_TOKENS:
        parser.error(f"no prompt can join streams of {options.new_tokens} tokens: set --long-prompt-tokens 0")
    return options


def _system(text: str) -> str:
    if text not in OPENERS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(OPENERS)}")
    return text


def _line(number: int, workload: Workload, system: System, measurement: Measurement) -> str:
    return (
        f"{number}  {workload.name:28} {system.name:24} {measurement.tokens_per_second:7.1f} tok/s"
        f"  TTFT {measurement.ttft_median:6.0f} ms  gap {measurement.largest_gap:6.0f} ms"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
