"""The systems that are compared: how each is started, asked and ended."""

from __future__ import annotations

import socket
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from benchmarks.child import open_child
from benchmarks.http_client import connect
from benchmarks.serving.event_stream import read_chat_chunk, read_response_event
from benchmarks.serving.http_run import Api, HttpRun
from benchmarks.serving.in_process import Peer
from benchmarks.serving.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from benchmarks.serving.model import BenchmarkModel
    from benchmarks.serving.workload import Workload

OURS = "ours"
IN_PROCESS = "in-process"
MLX_LM_SERVER = "mlx_lm.server"
MLX_LM_SERVER_DEFAULTS = "mlx_lm.server-defaults"
LLAMA_CPP = "llama.cpp"

_READY_SECONDS = 60.0
_READY_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """What all systems are given.

    ``parallel``: streams at once at most; ``context_tokens``: prompt and answer of the longest stream.
    ``logs``: a directory for what they write to standard error.
    """

    model: BenchmarkModel
    parallel: int
    context_tokens: int
    prefill_chunk_size: int
    llama_threads: int
    logs: Path


@dataclass(frozen=True, slots=True)
class System:
    """A system that is ready. ``run`` does a workload and measures it; nothing else may run meanwhile."""

    name: str
    description: str
    run: Callable[[Workload], Awaitable[Measurement]]


@asynccontextmanager
async def open_ours(conditions: Conditions) -> AsyncIterator[System]:
    """This server, as ``mlxcel serve`` runs it, through the Responses API."""
    flags = {
        "model": conditions.model.directory,
        "port": 0,
        "parallel": conditions.parallel,
        "prefill-chunk-size": conditions.prefill_chunk_size,
    }
    command = [sys.executable, "-m", "mlxcel_trio", "serve", *_as_flags(flags)]
    async with open_child(command, log=conditions.logs / OURS) as child:
        url = await child.read_line()
        api = Api("/v1/responses", _responses_body, read_response_event)
        description = f"POST /v1/responses, --prefill-chunk-size {conditions.prefill_chunk_size}"
        yield System(OURS, description, partial(_run_over_http, url, api))


@asynccontextmanager
async def open_in_process(conditions: Conditions) -> AsyncIterator[System]:
    """mlx-lm's BatchGenerator; see :mod:`benchmarks.serving.in_process`."""
    end_tokens = ",".join(map(str, sorted(conditions.model.tokenizer.end_tokens)))
    arguments = [conditions.model.directory, conditions.prefill_chunk_size, end_tokens]
    command = [sys.executable, "-m", "benchmarks.serving.in_process", *map(str, arguments)]
    async with open_child(command, log=conditions.logs / IN_PROCESS) as child:
        peer = msgspec.json.decode(await child.read_line(), type=Peer)

        async def run(workload: Workload) -> Measurement:
            answer = await child.ask(msgspec.json.encode(workload).decode())
            return msgspec.json.decode(answer, type=Measurement)

        description = f"BatchGenerator, step {conditions.prefill_chunk_size}; {peer.dtype}, {peer.blas}"
        yield System(IN_PROCESS, description, run)


@asynccontextmanager
async def open_mlx_lm_server(conditions: Conditions, *, own_defaults: bool = False) -> AsyncIterator[System]:
    """mlx-lm's server on a copy of the weights as ours holds them, with the same OpenBLAS.

    Its prompt cache is off, since no prompt repeats, and its prefill step is that of the others unless
    ``own_defaults`` leaves both as they come.
    """
    name = MLX_LM_SERVER_DEFAULTS if own_defaults else MLX_LM_SERVER
    directory, copy = conditions.model.equal_copy()
    port = _free_port()
    flags: dict[str, object] = {"model": directory, "port": port, "log-level": "WARNING"}
    if not own_defaults:
        flags |= {"prefill-step-size": conditions.prefill_chunk_size, "prompt-cache-size": 0}
    environment = {}
    if copy.openblas:
        environment["LD_PRELOAD"] = copy.openblas
    if copy.coretype:
        environment["OPENBLAS_CORETYPE"] = copy.coretype
    command = [sys.executable, "-m", "mlx_lm", "server", *_as_flags(flags)]
    async with open_child(command, log=conditions.logs / name, environment=environment):
        url = f"http://127.0.0.1:{port}"
        await _wait_until_healthy(url)
        api = Api("/v1/chat/completions", _chat_body, read_chat_chunk)
        step = "defaults" if own_defaults else f"step {conditions.prefill_chunk_size}, no prompt cache"
        description = f"POST /v1/chat/completions, {step}; {copy.dtype}"
        yield System(name, description, partial(_run_over_http, url, api))


@asynccontextmanager
async def open_llama_cpp(conditions: Conditions) -> AsyncIterator[System]:
    """llama.cpp's server on the GGUF file as it is, hence in the precision of that."""
    gguf = conditions.model.gguf()
    threads = conditions.llama_threads
    arguments = [gguf, conditions.parallel, conditions.prefill_chunk_size, conditions.context_tokens, threads]
    command = [sys.executable, "-m", "benchmarks.serving.llama_server", *map(str, arguments)]
    async with open_child(command, log=conditions.logs / LLAMA_CPP) as child:
        url = await child.read_line()
        api = Api("/v1/chat/completions", _llama_body, read_chat_chunk)
        how = f"batch {conditions.prefill_chunk_size}, {threads} threads"
        description = f"POST /v1/chat/completions, {how}; {gguf.name}"
        yield System(LLAMA_CPP, description, partial(_run_over_http, url, api))


OPENERS: dict[str, Callable[[Conditions], AbstractAsyncContextManager[System]]] = {
    OURS: open_ours,
    IN_PROCESS: open_in_process,
    MLX_LM_SERVER: open_mlx_lm_server,
    MLX_LM_SERVER_DEFAULTS: partial(open_mlx_lm_server, own_defaults=True),
    LLAMA_CPP: open_llama_cpp,
}
"""Every system by its name. Each is ended when its block is left."""


async def _run_over_http(url: str, api: Api, workload: Workload) -> Measurement:
    return await HttpRun(url, api, workload).run()


def _responses_body(text: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": "local",
        "input": text,
        "max_output_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
    }


def _chat_body(text: str, max_tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _llama_body(text: str, max_tokens: int) -> dict[str, Any]:
    return {**_chat_body(text, max_tokens), "cache_prompt": False, "ignore_eos": True}


def _as_flags(values: dict[str, Any]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def _free_port() -> int:
    """A port that is free now, for a server that cannot pick one itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def _wait_until_healthy(url: str) -> None:
    with trio.fail_after(_READY_SECONDS):
        while True:
            try:
                async with connect(url) as connection:
                    await connection.send("GET", "/health")
                    while await connection.receive() is not None:
                        pass
            except OSError:
                await trio.sleep(_READY_POLL_SECONDS)  # it has no other way to tell
            else:
                return
