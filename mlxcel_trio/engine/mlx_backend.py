"""The backend that runs a model with MLX and mlx-lm.

MLX is imported by ``load``, on the engine thread, so importing this module costs nothing.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from mlxcel_trio.core.sampling import SamplingParameters
from mlxcel_trio.engine.backend import LoadedModel, Row, RowEvent, RowFailed, Sampled
from mlxcel_trio.engine.mlx_runtime import WiredMemory, device_name, free_unused_memory, import_mlx, on_cpu
from mlxcel_trio.errors import MlxcelError, ModelError, one_line
from mlxcel_trio.log import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from mlxcel_trio.engine.blas import BlasReport
    from mlxcel_trio.engine.row_batch import RowBatch
    from mlxcel_trio.engine.weights import Dtype

_CPU_CHUNK_TOKENS = 128
_GPU_CHUNK_TOKENS = 512

logger = get_logger(__name__)


class MlxBackend:
    """Implements :class:`mlxcel_trio.engine.backend.Backend` with mlx-lm's continuous batching.

    ``parallel`` rows prefill or decode at once, further ones wait in the order in which they came.
    ``prefill_chunk_size`` bounds the prompt tokens that one step processes: 512 by default, on a CPU 128.
    ``context_window`` shortens the model's own window; a longer one is capped at that without an error.
    ``dtype`` "auto" picks the fastest type for the device. Generation stops at any of ``end_tokens``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        parallel: int,
        prefill_chunk_size: int | None,
        context_window: int | None,
        dtype: Dtype,
        end_tokens: frozenset[int],
    ) -> None:
        self._directory = directory
        self._parallel = parallel
        self._prefill_chunk_size = prefill_chunk_size
        self._context_window = context_window
        self._dtype = dtype
        self._end_tokens = end_tokens
        self._rows: RowBatch | None = None
        self._memory: WiredMemory | None = None

    def load(self) -> LoadedModel:
        """Import MLX, load the model and generate a token with it, so that no request pays for first use.

        :raises ConfigurationError: MLX is not installed, or twice.
        :raises ModelError: the model cannot be loaded, or does not run.
        """
        blas = import_mlx()
        if blas.note is not None:
            logger.warning(blas.note)
        try:
            return self._load(blas)
        except MlxcelError:
            raise
        except Exception as error:  # a model's own code, on whatever its config says
            raise ModelError(
                f"{self._directory} does not run: {type(error).__name__}: {one_line(error)}"
            ) from error

    def insert(self, row: Row) -> None:
        """Take a row; its prefill starts with a later step, when one of ``parallel`` places is free."""
        self._loaded_rows().insert(row)

    def remove(self, row_id: int) -> None:
        """Drop a row at any stage; unknown ids are ignored."""
        self._loaded_rows().remove(row_id)

    def step(self) -> list[RowEvent]:
        """Process one unit of prompt tokens and one decode step for every row past its prompt."""
        return self._loaded_rows().step()

    def close(self) -> None:
        """Free the model and its caches. Also after a failed ``load`` or ``step``."""
        if self._memory is None:
            return
        self._rows = None
        gc.collect()
        free_unused_memory()
        self._memory.release()
        self._memory = None

    def _load(self, blas: BlasReport) -> LoadedModel:
        from mlxcel_trio.engine.decode_batch import DecodeBatch
        from mlxcel_trio.engine.prefiller import Prefiller
        from mlxcel_trio.engine.rotary import share_rotary
        from mlxcel_trio.engine.row_batch import RowBatch
        from mlxcel_trio.engine.weights import context_window, load_weights

        weights = load_weights(
            self._directory, self._dtype, fast_blas=not blas.slow, column_major=blas.column_major
        )
        chunk_tokens = self._prefill_chunk_size or (_CPU_CHUNK_TOKENS if on_cpu() else _GPU_CHUNK_TOKENS)
        self._memory = WiredMemory()
        rotary = share_rotary(weights.model) if on_cpu() else ()
        prefiller = Prefiller(weights.model)
        vocabulary_size = prefiller.vocabulary_size()
        self._rows = RowBatch(
            prefiller,
            DecodeBatch(weights.model, end_tokens=self._end_tokens, ahead=not on_cpu(), rotary=rotary),
            parallel=self._parallel,
            prefill_chunk_size=chunk_tokens,
            vocabulary_size=vocabulary_size,
        )
        _warm_up(self._rows)
        return LoadedModel(
            context_window=context_window(weights.config, self._context_window),
            vocabulary_size=vocabulary_size,
            device=device_name(),
            dtype=weights.dtype,
            blas=blas.name,
        )

    def _loaded_rows(self) -> RowBatch:
        if self._rows is None:
            raise RuntimeError("the backend is used before load() or after close()")
        return self._rows


def _warm_up(rows: RowBatch) -> None:
    """Prefill and decode once: kernels are compiled on first use."""
    rows.insert(Row(row_id=-1, prompt=[0, 0, 0], max_tokens=1, sampling=SamplingParameters(temperature=0)))
    while True:
        for event in rows.step():
            if isinstance(event, Sampled):
                return
            if isinstance(event, RowFailed):
                raise ModelError(f"the model does not run: {event.message}")
