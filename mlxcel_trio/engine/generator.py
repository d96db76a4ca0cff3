"""The adapter to mlx-lm's BatchGenerator: the only module that knows its names.

Everything here belongs to one thread, the one that loaded the model.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from mlxcel_trio.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx.nn.layers.base import Module

    from mlxcel_trio.engine.backend import FinishReason, LogitsProcessor
    from mlxcel_trio.engine.sampler import Sampler

Cache = list[Any]
"""One cache object of mlx-lm per layer."""


class PromptProgress(NamedTuple):
    """``done`` of the tokens given to :meth:`TokenGenerator.insert` have been processed."""

    uid: int
    done: int


class GeneratedToken(NamedTuple):
    """A sampled token; with a ``finish_reason`` it is the sequence's last."""

    uid: int
    token: int
    finish_reason: FinishReason | None


class TokenGenerator:
    """Generates several sequences at once.

    ``parallel`` bounds the sequences that are inserted and not finished, ``prefill_chunk_size`` the tokens
    of one of them that :meth:`next` prefills in one call. Sequences stop at any of ``end_tokens``.

    :raises UnsupportedModelError: the model's caches cannot be batched.
    """

    def __init__(
        self, model: Module, *, parallel: int, prefill_chunk_size: int, end_tokens: frozenset[int]
    ) -> None:
        self._model = model
        if not _is_batchable(self.new_cache()):
            raise UnsupportedModelError("this kind of model cannot generate several sequences at once")
        self._generator = BatchGenerator(
            model,
            stop_tokens=[[token] for token in sorted(end_tokens)],
            completion_batch_size=parallel,
            prefill_batch_size=parallel,
            prefill_step_size=prefill_chunk_size,
        )

    def vocabulary_size(self) -> int:
        """The number of logits, which may differ from the tokenizer's vocabulary."""
        logits: mx.array = self._model(mx.array([[0]]), cache=self.new_cache())
        return logits.shape[-1]  # known without being computed

    def new_cache(self) -> Cache:
        """An empty KV cache for one sequence."""
        return make_prompt_cache(self._model)

    def feed(self, tokens: Sequence[int], cache: Cache) -> None:
        """Run prompt tokens of one sequence through the model, into its ``cache``."""
        with mx.stream(self._generator.stream):
            self._model(mx.array([list(tokens)]), cache=cache)
            mx.eval([layer.state for layer in cache])
        mx.clear_cache()

    def insert(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int,
        sampler: Sampler,
        cache: Cache | None,
        fed: Sequence[int],
        processor: LogitsProcessor | None,
    ) -> int:
        """Take a sequence whose prompt ends with ``tokens``; returns its uid.

        ``cache`` covers what comes before them, and is not changed; ``fed`` is what the processor is to
        see of that. The processor is called as ``processor(fed + tokens + sampled, logits)``, one step
        ahead: also once after the last token. It must not raise: the step would be lost for everybody.

        :raises ValueError: the cache belongs to another model or cannot be batched.
        """
        if cache is not None and not (_is_batchable(cache) and len(cache) == len(self.new_cache())):
            raise ValueError("the prompt cache does not fit the model")
        (uid,) = self._generator.insert(
            [list(tokens)],
            max_tokens=[max_tokens],
            caches=None if cache is None else [cache],
            all_tokens=[list(fed)],
            samplers=[sampler],
            logits_processors=[[processor] if processor else []],
        )
        return int(uid)

    def remove(self, uid: int) -> None:
        """Drop a sequence that has not finished, whatever its stage."""
        self._generator.remove([uid])

    def next(self) -> tuple[list[PromptProgress], list[GeneratedToken]]:
        """One decode step for every sequence past its prompt, one prefill chunk for every other one."""
        prompts, tokens = self._generator.next()
        return (
            [PromptProgress(prompt.uid, prompt.progress[0]) for prompt in prompts],
            [GeneratedToken(answer.uid, answer.token, answer.finish_reason) for answer in tokens],
        )

    def close(self) -> None:
        """Give back what the generator holds of the device."""
        self._generator.close()


def _is_batchable(cache: Cache) -> bool:
    return all(hasattr(layer, "merge") for layer in cache)


def copy_cache(cache: Cache) -> Cache:
    """A cache that can be fed without changing ``cache``; the copy is cheap, since buffers are shared."""
    return copy.deepcopy(cache)
