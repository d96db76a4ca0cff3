"""What a process holds, and a scripted server in a process of its own, to be measured and signalled."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import trio
from support.processes import line_of, running
from support.served import ServerClient, http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from mlxcel_trio.testing.script import ScriptRow

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1024 * 1024


class Resources(NamedTuple):
    """Threads, open descriptors, and bytes of memory that no other process shares (USS)."""

    threads: int
    descriptors: int
    memory: int

    def __str__(self) -> str:
        memory = f"{self.memory / MEBIBYTE:.2f} MiB"
        return f"{self.threads} threads, {self.descriptors} descriptors, {memory} of memory"


def resources(pid: int | None = None) -> Resources:
    """What a process holds now; this one unless another is named."""
    process = Path("/proc") / ("self" if pid is None else str(pid))
    private = [
        1024 * int(line.split()[1])
        for line in (process / "smaps_rollup").read_text().splitlines()
        if line.startswith("Private_")
    ]
    return Resources(
        threads=len(list((process / "task").iterdir())),
        descriptors=len(list((process / "fd").iterdir())),
        memory=sum(private),
    )


class ServerProcess(ServerClient):
    """A server that is a process."""

    def __init__(self, url: str, client: httpx.AsyncClient, process: subprocess.Popen[str]) -> None:
        super().__init__(url, client)
        self._process = process

    def resources(self) -> Resources:
        """What it holds now."""
        return resources(self._process.pid)

    def send_signal(self, number: int) -> None:
        """Signal it."""
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for its end."""
        return await trio.to_thread.run_sync(self._process.wait)


@asynccontextmanager
async def serving_process(
    directory: Path, *rows: ScriptRow, flags: tuple[str, ...] = (), within: float = 60
) -> AsyncIterator[ServerProcess]:
    """``python -m mlxcel_trio.testing`` on ``rows``; the script goes into ``directory``. Killed at the end.

    Only errors are logged, to this process's stderr. The block may take ``within`` seconds.
    """
    process = _start(directory, rows, flags)
    with running(process), trio.fail_after(within):
        url = await trio.to_thread.run_sync(line_of, process)
        async with http_client(url) as client:
            yield ServerProcess(url, client, process)


def _start(directory: Path, rows: tuple[ScriptRow, ...], flags: tuple[str, ...]) -> subprocess.Popen[str]:
    script = directory / "script.jsonl"
    script.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    command = [sys.executable, "-m", "mlxcel_trio.testing", "--script", str(script), "--port", "0"]
    return subprocess.Popen(
        [*command, "--log-level", "error", *flags],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MLXCEL_")},
        stdout=subprocess.PIPE,
        text=True,
    )
