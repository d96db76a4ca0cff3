"""An engine on a model directory: tokenizer and MLX backend, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.engine.api import Engine
from mlxcel_trio.engine.mlx_backend import MlxBackend
from mlxcel_trio.engine.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from mlxcel_trio.engine.weights import Dtype


def mlx_engine(
    directory: Path,
    *,
    parallel: int,
    prefill_chunk_size: int | None = None,
    context_window: int | None = None,
    dtype: Dtype = "auto",
) -> Engine:
    """An engine that is ready to :meth:`~Engine.run` the mlx-lm model in ``directory``.

    ``parallel`` rows are generated at once, prompts are processed ``prefill_chunk_size`` tokens at a time,
    ``context_window`` tokens hold prompt and answer; ``None`` leaves a choice to the model and the device.
    """

    def load() -> tuple[ChatTokenizer, MlxBackend]:
        tokenizer = ChatTokenizer.load(directory)
        backend = MlxBackend(
            directory,
            parallel=parallel,
            prefill_chunk_size=prefill_chunk_size,
            context_window=context_window,
            dtype=dtype,
            end_tokens=tokenizer.end_tokens,
        )
        return tokenizer, backend

    return Engine(load)
