"""Processes that a benchmark starts, talks to in lines and ends."""

from __future__ import annotations

import os
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

_STOP_SECONDS = 10.0


class Child:
    """A process and its standard streams; for one task at a time."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._unread = b""

    async def read_line(self) -> str:
        """The next line that the process prints, without its end.

        :raises RuntimeError: the process ended instead.
        """
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            data = await self._process.stdout.receive_some()
            if not data:
                raise RuntimeError(f"process {self._process.pid} ended unexpectedly")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    async def ask(self, line: str) -> str:
        """Send a line and return the line that answers it."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(line.encode() + b"\n")
        return await self.read_line()


@asynccontextmanager
async def open_child(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Child]:
    """Run ``command`` while the block is open, then end it: SIGTERM, and ten seconds later SIGKILL.

    ``environment`` is added to this process's. Standard error goes to the file ``log``; an exception that
    leaves the block carries the last lines of it as a note.
    """
    with log.open("ab") as errors:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield Child(process)
    except Exception as error:
        error.add_note(f"{' '.join(command)} said last:\n{_tail(log)}")
        raise
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)


async def _end(process: trio.Process) -> None:
    process.terminate()
    with trio.move_on_after(_STOP_SECONDS):
        await process.wait()
    process.kill()
    await process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await trio.aclose_forcefully(pipe)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
