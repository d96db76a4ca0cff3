"""An engine on a model: tokenizer and MLX backend, put together, and opened inside a nursery."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from mlxcel_trio.engine.api import Engine
from mlxcel_trio.engine.mlx_backend import MlxBackend
from mlxcel_trio.engine.models import cache_directory, resolve_model
from mlxcel_trio.engine.tokenizer import ChatTokenizer
from mlxcel_trio.log import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mlxcel_trio.engine.weights import Dtype


log = get_logger(__name__)


def mlx_engine(
    directory: Path,
    *,
    parallel: int,
    prefill_chunk_size: int | None = None,
    context_window: int | None = None,
    dtype: Dtype = "auto",
    chat_template: str | None = None,
    decode_timeout: float = math.inf,
) -> Engine:
    """An engine that is ready to :meth:`~Engine.run` the mlx-lm model in ``directory``.

    ``parallel`` rows are generated at once, prompts are processed ``prefill_chunk_size`` tokens at a time,
    ``context_window`` tokens hold prompt and answer; ``None`` leaves a choice to the model and the device.
    ``chat_template`` is Jinja source that replaces the model's own. A step that takes longer than
    ``decode_timeout`` seconds counts as hanging.
    """

    def load() -> tuple[ChatTokenizer, MlxBackend]:
        tokenizer = ChatTokenizer.load(directory, chat_template=chat_template)
        backend = MlxBackend(
            directory,
            parallel=parallel,
            prefill_chunk_size=prefill_chunk_size,
            context_window=context_window,
            dtype=dtype,
            end_tokens=tokenizer.end_tokens,
        )
        return tokenizer, backend

    return Engine(load, decode_timeout=decode_timeout)


@asynccontextmanager
async def open_engine(
    model: str | None = None,
    *,
    parallel: int = 8,
    prefill_chunk_size: int | None = None,
    context_window: int | None = None,
    dtype: Dtype = "auto",
) -> AsyncIterator[Engine]:
    """An engine that runs while the block is open.

    ``model`` is what ``--model`` takes: a directory, a GGUF file, a hub repository; the demo model if nothing
    is named. It is fetched first if it has to be. The other parameters are those of :func:`mlx_engine`.

    Leaving the block, also by a cancel, drops every sequence, waits for the engine's step in progress and
    frees the model. Should the engine fail, the block is cancelled and :class:`EngineFailureError` raised;
    like any exception out of a nursery, it comes in a group.

    :raises ModelError: the model cannot be had or loaded.
    """
    resolve = partial(resolve_model, model, cache_dir=cache_directory(), report=log.info)
    source = await trio.to_thread.run_sync(resolve)
    engine = mlx_engine(
        source.directory,
        parallel=parallel,
        prefill_chunk_size=prefill_chunk_size,
        context_window=context_window,
        dtype=dtype,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        yield engine
        nursery.cancel_scope.cancel()
