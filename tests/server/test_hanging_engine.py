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
from support.served import LIMIT_SECONDS, ServerClient, body_of, checked_error, http_client, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.published import Json

ROOT = Path(__file__).parent.parent.parent
ROWS = ({"when": "hang", "emit": ["a", "b"], "then": "hang"}, {"emit": ["fine"]})


def start(script: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mlxcel_trio.testing", "--script", str(script)]
    options = ["--port", "0", "--graceful-timeout", "0.2", *flags]
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MLXCEL_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@asynccontextmanager
async def serving_process(
    directory: Path, *flags: str
) -> AsyncIterator[tuple[ServerClient, subprocess.Popen[str]]]:
    script = directory / "script.jsonl"
    script.write_text("\n".join(map(json.dumps, ROWS)))
    process = start(script, *flags)
    with running(process), trio.fail_after(LIMIT_SECONDS):
        url = await trio.to_thread.run_sync(line_of, process)
        async with http_client(url) as client:
            yield ServerClient(url, client), process


async def assert_gives_up(process: subprocess.Popen[str]) -> None:
    """The process ends by itself though its engine hangs, and says so."""
    logged = await trio.to_thread.run_sync(lambda: process.communicate()[1])
    assert process.returncode == 1
    assert "engine_hangs" in logged.splitlines()[-1]
    assert "Traceback" not in logged


async def test_requests_stay_open_until_the_server_is_stopped(tmp_path: Path) -> None:
    async with (
        serving_process(tmp_path) as (server, process),
        server.open_stream(input="hang") as stream,
    ):
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

        process.send_signal(signal.SIGTERM)
        # The grace period ends before the process does: its clients are told.
        response = await stream.rest()
        assert (response["status"], text_of(response)) == ("failed", "ab")
        await assert_gives_up(process)


async def test_a_step_that_takes_too_long_fails_its_responses(tmp_path: Path) -> None:
    errors: list[Json] = []

    async def create() -> None:
        reply = await server.refusal()
        assert reply.status_code == 500
        errors.append(checked_error(reply))

    async with (
        serving_process(tmp_path, "--decode-timeout", "1") as (server, process),
        trio.open_nursery() as nursery,
        server.open_stream(input="hang") as stream,
    ):
        await server.until(sampled_tokens=2)
        nursery.start_soon(create)
        await server.until(running=2)
        response = await stream.rest()
        assert (response["status"], text_of(response)) == ("failed", "ab")
        assert response["error"]["code"] == "server_error"
        report = await server.client.get("/health")
        assert (report.status_code, report.json()["engine"]) == (503, "hanging")
        reply = await server.refusal()
        assert (reply.status_code, checked_error(reply)["code"]) == (503, "engine_unavailable")
        await server.until(running=0)
        process.send_signal(signal.SIGTERM)
        await assert_gives_up(process)
    assert [error["code"] for error in errors] == ["server_error"]
