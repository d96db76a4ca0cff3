"""The adapter to mlx-lm's batched generation: the only module that knows its names.

Everything here belongs to one thread, the one that loaded the model.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from mlxcel_trio.engine.backend import Logprobs
from mlxcel_trio.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx.nn.layers.base import Module

    from mlxcel_trio.engine.backend import FinishReason, LogitsProcessor
    from mlxcel_trio.engine.sampler import Sampler

Cache = list[Any]
"""One cache object of mlx-lm per layer."""


class GeneratedToken(NamedTuple):
    """A sampled token; with a ``finish_reason`` it is the sequence's last."""

    uid: int
    token: int
    finish_reason: FinishReason | None
    logprobs: mx.array

    def with_alternatives(self, count: int) -> Logprobs:
        """Its log probability and the ``count`` likeliest tokens."""
        values = self.logprobs.astype(mx.float32)
        likeliest = mx.argsort(-values)[:count]
        tokens: Any = likeliest.tolist()
        logprobs: Any = values[likeliest].tolist()
        sampled: Any = values[self.token].item()
        return Logprobs(sampled, tuple(zip(tokens, logprobs, strict=True)))


class TokenGenerator:
    """Runs a model: prompts into caches, and from there token by token, several sequences at once.

    ``parallel`` bounds the sequences that are inserted and not finished. Sequences stop at any of
    ``end_tokens``.

    :raises UnsupportedModelError: the model's caches cannot be batched.
    """

    def __init__(self, model: Module, *, parallel: int, end_tokens: frozenset[int]) -> None:
        self._model = model
        if not _is_batchable(self.new_cache()):
            raise UnsupportedModelError("this kind of model cannot generate several sequences at once")
        self._generator = BatchGenerator(
            model,
            stop_tokens=[[token] for token in sorted(end_tokens)],
            completion_batch_size=parallel,
            prefill_batch_size=parallel,
        )

    def vocabulary_size(self) -> int:
        """The number of logits, which may differ from the tokenizer's vocabulary."""
        logits: mx.array = self._model(mx.array([[0]]), cache=self.new_cache())
        return logits.shape[-1]  # known without being computed

    def new_cache(self) -> Cache:
        """An empty KV cache for one sequence."""
        return make_prompt_cache(self._model)

    def feed(self, prompts: list[list[int]], caches: list[Cache]) -> list[Cache]:
        """Run prompt tokens through the model, and return the caches that cover them too.

        A single cache is changed in place. Several prompts are padded to the longest of them, and their
        caches are left as they were.
        """
        with mx.stream(self._generator.stream):
            if len(prompts) == 1:
                self._model(mx.array(prompts), cache=caches[0])
            else:
                batch = PromptProcessingBatch(
                    self._model, list(range(len(prompts))), caches, prefill_step_size=max(map(len, prompts))
                )
                batch.prompt(prompts)
                caches = [batch.extract_cache(index) for index in range(len(prompts))]
            mx.eval([layer.state for cache in caches for layer in cache])
        mx.clear_cache()
        return caches

    def insert(
        self,
        token: int,
        *,
        cache: Cache,
        max_tokens: int,
        sampler: Sampler,
        before: Sequence[int],
        processor: LogitsProcessor | None,
    ) -> int:
        """Take a sequence whose prompt ends with ``token``, after what ``cache`` covers; returns its uid.

        The first :meth:`next` runs the token through the model, the second one returns what was sampled.
        ``processor`` is called with ``before``, the token and all that was sampled so far. It is one step
        ahead: also called once after the last token. It must not raise: all sequences would lose a step.

        :raises ValueError: the cache belongs to another model or cannot be batched.
        """
        if not (_is_batchable(cache) and len(cache) == len(self.new_cache())):
            raise ValueError("the prompt cache does not fit the model")
        (uid,) = self._generator.insert(
            [[token]],
            max_tokens=[max_tokens],
            caches=[cache],
            all_tokens=[list(before)],
            samplers=[sampler],
            logits_processors=[[processor] if processor else []],
        )
        return int(uid)

    def remove(self, uid: int) -> None:
        """Drop a sequence that has not finished."""
        self._generator.remove([uid])

    def next(self) -> list[GeneratedToken]:
        """One decode step for all sequences; those inserted since the last call give no token yet."""
        _, answers = self._generator.next()
        return [
            GeneratedToken(answer.uid, answer.token, answer.finish_reason, answer.logprobs)
            for answer in answers
        ]

    def close(self) -> None:
        """Give back what the generator holds of the device."""
        self._generator.close()


def _is_batchable(cache: Cache) -> bool:
    return all(hasattr(layer, "merge") for layer in cache)


def copy_cache(cache: Cache) -> Cache:
    """A cache that can be fed without changing ``cache``; the copy is cheap, since buffers are shared."""
    return copy.deepcopy(cache)
