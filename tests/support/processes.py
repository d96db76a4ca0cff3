"""Runs a few lines of Python in a process of their own, to be talked to, interrupted or killed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def python(
    script: str,
    *arguments: object,
    environ: Mapping[str, str] | None = None,
    stderr: int | None = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Start ``script`` with this process's import path; its three streams are text pipes."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **(environ or {})},
    )


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill ``process`` at the end if it still runs."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that ``process`` prints; waits for it."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"the process ended with status {process.wait()} instead"
    return line


def tell(process: subprocess.Popen[str]) -> None:
    """Let a process go on that waits for a line."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
