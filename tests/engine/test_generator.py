"""The names of mlx-lm that the adapter uses, so that a release that changes them fails here and clearly."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

from mlxcel_trio.engine.mlx_runtime import import_mlx

if TYPE_CHECKING:
    from collections.abc import Callable


def takes(function: Callable[..., object], *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


def test_mlx_lm_still_has_what_the_adapter_calls() -> None:
    import_mlx()
    from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import dequantize_model, get_total_parameters, load_config, load_model

    assert takes(
        BatchGenerator.__init__, "model", "stop_tokens", "completion_batch_size", "prefill_batch_size"
    )
    assert takes(PromptProcessingBatch.__init__, "model", "uids", "caches", "prefill_step_size")
    assert takes(PromptProcessingBatch.prompt, "tokens")
    assert takes(PromptProcessingBatch.extract_cache, "idx")
    assert takes(
        BatchGenerator.insert,
        "prompts",
        "max_tokens",
        "caches",
        "all_tokens",
        "samplers",
        "logits_processors",
    )
    assert takes(BatchGenerator.remove, "uids")
    assert takes(BatchGenerator.next, "self")
    assert takes(BatchGenerator.close, "self")
    assert isinstance(inspect.getattr_static(BatchGenerator, "stream"), property)
    answers = {field.name for field in dataclasses.fields(GenerationBatch.Response)}
    assert {"uid", "token", "finish_reason"} <= answers
    assert takes(make_prompt_cache, "model")
    assert takes(load_model, "model_path", "lazy")
    assert takes(load_config, "model_path")
    assert takes(dequantize_model, "model")
    assert takes(get_total_parameters, "model")
