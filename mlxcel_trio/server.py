"""The server as nested lifetimes, all inside one task.

::

    serve
     `- engine nursery - the engine and its thread
         `- jobs nursery - background responses
             `- http nursery - listeners, connections, requests

Leaving unwinds inside out: HTTP stops first, jobs that nobody could poll any more are cancelled, then the
engine thread is joined.
"""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Struct

from mlxcel_trio.core.admission import Admission
from mlxcel_trio.core.ids import IdFactory
from mlxcel_trio.core.jobs import ActiveJobs
from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.core.store import StoreLimits
from mlxcel_trio.engine.mlx_engine import mlx_engine
from mlxcel_trio.engine.models import ModelSource, cache_directory, resolve_model, sampling_defaults
from mlxcel_trio.errors import ConfigurationError, EngineFailureError
from mlxcel_trio.http.app import create_app
from mlxcel_trio.http.usecases import UseCases
from mlxcel_trio.http.worker import WorkerLimits, serve_http
from mlxcel_trio.log import get_logger
from mlxcel_trio.service.admission import Slots
from mlxcel_trio.service.conversations import Conversations
from mlxcel_trio.service.jobs import Jobs
from mlxcel_trio.service.responses import Responses, ServedModel
from mlxcel_trio.service.stored_responses import StoredResponses
from mlxcel_trio.settings import read_api_key_file

if TYPE_CHECKING:
    from pathlib import Path

    from mlxcel_trio.engine.api import Engine
    from mlxcel_trio.engine.backend import LoadedModel
    from mlxcel_trio.settings import Settings

log = get_logger(__name__)

RESERVED_ALIAS = "local"


class Model(Struct, frozen=True):
    """The engine's model as users name it: every name it goes by, the canonical one first."""

    names: tuple[str, ...]
    sampling: SamplingDefaults = SamplingDefaults()


async def serve(
    settings: Settings,
    *,
    model: ModelSource | None = None,
    shutdown: trio.Event | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a model until ``shutdown`` is set; see :func:`serve_engine`. Signals are left to the caller.

    ``model`` is what ``settings.model`` stands for, if that has been found already; otherwise it is looked
    up, and fetched if it has to be. Any number of servers may run in one process::

        url = await nursery.start(serve, Settings(port=0))
    """
    settings = read_api_key_file(settings)
    if model is None:
        resolve = partial(resolve_model, settings.model, cache_dir=cache_directory(), report=log.info)
        model = await trio.to_thread.run_sync(resolve)
    engine = mlx_engine(
        model.directory,
        parallel=settings.parallel,
        context_window=settings.ctx_size,
        prefill_chunk_size=settings.prefill_chunk_size,
        dtype=settings.dtype,
        chat_template=_chat_template(settings.chat_template_file),
        decode_timeout=settings.decode_timeout,
    )
    named = Model(model.aliases, sampling_defaults(model.directory))
    shutdown = trio.Event() if shutdown is None else shutdown
    await serve_engine(settings, engine, named, shutdown=shutdown, task_status=task_status)


async def serve_engine(
    settings: Settings,
    engine: Engine,
    model: Model,
    *,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run ``engine`` and serve it over HTTP until ``shutdown`` is set.

    The address is bound first and answers 503 while the model loads; the URL is reported through
    ``task_status`` once requests are taken. Shutdown lets running requests finish within
    ``settings.graceful_timeout`` seconds; a cancel ends at once. Either waits for the engine's step in
    progress, so for ever if the model hangs in it: whoever needs the process to end has to exit it. An engine
    that fails later on is logged, and the server goes on to answer 503.

    :raises ConfigurationError: the address cannot be bound.
    :raises ModelError: the model cannot be loaded.
    """
    jobs = Jobs()
    responses, stored, conversations = _services(settings, engine, model, jobs)
    app = create_app(
        UseCases(responses, stored, conversations),
        api_keys=settings.api_keys,
        allowed_origins=settings.allowed_origins,
        max_body_bytes=settings.max_body_bytes,
        ping_interval=settings.sse_ping_interval or None,
    )
    limits = WorkerLimits(
        max_connections=settings.max_connections,
        header_timeout=settings.keep_alive_timeout,
        keep_alive_timeout=settings.keep_alive_timeout,
        write_timeout=settings.write_timeout,
        graceful_timeout=settings.graceful_timeout,
    )
    async with trio.open_nursery() as engine_nursery:
        async with jobs.open(), trio.open_nursery() as http_nursery:

            async def http(*, task_status: trio.TaskStatus[str]) -> None:
                await serve_http(
                    app,
                    settings.host,
                    settings.port,
                    shutdown=shutdown,
                    limits=limits,
                    task_status=task_status,
                )

            async def close_in_time() -> None:
                await shutdown.wait()
                # A little before HTTP cuts connections, so that the last event still gets out.
                grace = settings.graceful_timeout - min(1.0, settings.graceful_timeout / 4)
                responses.close_at(trio.current_time() + grace)

            url = await http_nursery.start(http)
            http_nursery.start_soon(close_in_time)
            loaded = await engine_nursery.start(_run_engine, engine)
            _report(loaded, model, settings)
            task_status.started(url)
        engine_nursery.cancel_scope.cancel()


async def _run_engine(engine: Engine, *, task_status: trio.TaskStatus[LoadedModel]) -> None:
    try:
        await engine.run(task_status=task_status)
    except EngineFailureError as error:
        # The API goes on to answer, with 503 for new work.
        log.error("engine_stopped", reason=str(error), exc_info=error.__cause__)


def _chat_template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"--chat-template-file '{path}' cannot be read: {reason}.") from None


def _services(
    settings: Settings, engine: Engine, model: Model, jobs: Jobs
) -> tuple[Responses, StoredResponses, Conversations]:
    canonical, *others = dict.fromkeys((*settings.aliases, *model.names))
    served = ServedModel(
        names=dict.fromkeys((canonical, *others, RESERVED_ALIAS), canonical),
        hidden=frozenset({RESERVED_ALIAS} - {canonical, *others}),
        sampling=_sampling(settings, model.sampling),
        created=int(time.time()),
    )
    new_id = IdFactory(secrets.token_bytes).new
    stored = StoredResponses(
        _response_limits(settings),
        ephemeral_ttl_seconds=settings.responses_background_ephemeral_ttl_secs,
        clock=trio.current_time,
    )
    conversations = Conversations(
        _conversation_limits(settings),
        new_id=new_id,
        clock=trio.current_time,
        wall_clock=time.time,
        find_item=stored.find_item,
    )
    responses = Responses(
        engine,
        served,
        Slots(Admission(settings.parallel, settings.max_queue_depth)),
        stored,
        conversations,
        jobs,
        active_jobs=ActiveJobs(settings.responses_background_max_jobs, settings.responses_store_max_bytes),
        new_id=new_id,
        wall_clock=time.time,
    )
    return responses, stored, conversations


def _response_limits(settings: Settings) -> StoreLimits:
    return StoreLimits(
        max_entries=settings.responses_store_max_entries,
        max_bytes=settings.responses_store_max_bytes,
        ttl_seconds=settings.responses_store_ttl_secs,
    )


def _conversation_limits(settings: Settings) -> StoreLimits:
    return StoreLimits(
        max_entries=settings.conversation_store_max_entries,
        max_bytes=settings.conversation_store_max_bytes,
        ttl_seconds=settings.conversation_store_ttl_secs,
    )


def _sampling(settings: Settings, defaults: SamplingDefaults) -> SamplingDefaults:
    flags = {name: getattr(settings, name) for name in SamplingDefaults.__struct_fields__}
    return msgspec.structs.replace(
        defaults, **{name: value for name, value in flags.items() if value is not None}
    )


def _report(loaded: LoadedModel, model: Model, settings: Settings) -> None:
    log.info(
        "model_loaded",
        model=model.names[0],
        context_window=loaded.context_window,
        device=loaded.device,
        dtype=loaded.dtype,
        blas=loaded.blas,
        parallel=settings.parallel,
    )
