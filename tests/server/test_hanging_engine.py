"""``python -m mlxcel_trio.testing`` on an engine that hangs: it serves on, and it can be stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from support.processes import line_of, running
from support.served import LIMIT_SECONDS, ServerClient, body_of, http_client, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parent.parent.parent
ROWS = ({"when": "hang", "emit": ["a", "b"], "then": "hang"}, {"emit": ["fine"]})


def start(script: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mlxcel_trio.testing", "--script", str(script)]
    options = ["--port", "0", "--graceful-timeout", "0.2"]
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MLXCEL_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@asynccontextmanager
async def serving_process(script: Path) -> AsyncIterator[tuple[ServerClient, subprocess.Popen[str]]]:
    process = start(script)
    with running(process), trio.fail_after(LIMIT_SECONDS):
        url = await trio.to_thread.run_sync(line_of, process)
        async with http_client(url) as client:
            yield ServerClient(url, client), process


async def test_a_hanging_engine(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text("\n".join(map(json.dumps, ROWS)))
    async with serving_process(script) as (server, process), server.open_stream(input="hang") as stream:
        await stream.next("response.output_text.delta")
        await stream.next("response.output_text.delta")
        hanging = await server.until(sampled_tokens=2)
        # Requests are taken and stay open, streams and others.
        async with server.connect() as client:
            await client.send("POST", "/v1/responses", body=json.dumps(body_of({})).encode())
            await server.until(running=2, rows=2)
        # A client that leaves frees its slot, though the thread has not let go of its row.
        left = await server.until(running=1)
        assert (left["ok"], left["rows"]) == (True, 2)
        assert left["steps"] == hanging["steps"]
        assert [event["type"] for event in stream.received].count("response.output_text.delta") == 2

        process.send_signal(signal.SIGTERM)
        # The grace period ends before the process, which lets go of its clients in form.
        response = await stream.rest()
        assert (response["status"], text_of(response)) == ("failed", "ab")
        logged = await trio.to_thread.run_sync(lambda: process.communicate()[1])
        assert process.returncode == 1
        assert "engine_hangs" in logged.splitlines()[-1]
        assert "Traceback" not in logged
