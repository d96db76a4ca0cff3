"""What to generate, and reading what was generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from mlxcel_trio.core.logprobs import token_logprob
from mlxcel_trio.core.parsing.output import OutputParser
from mlxcel_trio.core.parsing.segments import ReasoningDelta
from mlxcel_trio.core.sampling import LogitAdjustments, SamplingParameters
from mlxcel_trio.engine.tokenizer import RenderedPrompt
from mlxcel_trio.protocol.responses import OutputTokensDetails, Usage

if TYPE_CHECKING:
    from mlxcel_trio.core.parsing.segments import Segment
    from mlxcel_trio.engine.api import Tokenizer
    from mlxcel_trio.engine.backend import Sampled
    from mlxcel_trio.protocol.responses import TokenLogprob


class Generation(Struct, frozen=True):
    """What to generate: the rendered prompt, a token budget of at least 1, and how to sample and stop.

    ``background``: nobody waits for it.
    """

    prompt: RenderedPrompt
    max_tokens: int
    sampling: SamplingParameters
    adjustments: LogitAdjustments
    top_logprobs: int | None
    stops: tuple[str, ...]
    background: bool = False


class OutputReader:
    """Turns the tokens of one sequence into segments, and counts them."""

    def __init__(self, generation: Generation, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._parser = OutputParser(
            reasoning_markers=tokenizer.reasoning_markers,
            reasoning_opened=generation.prompt.opens_reasoning,
            stops=generation.stops,
        )
        self._input_tokens = len(generation.prompt.tokens)
        self._output_tokens = 0
        self._reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._parser.stopped

    def take(self, event: Sampled, text: str) -> list[Segment]:
        """What one more token, whose text is ``text``, completes."""
        parser = self._parser
        reasoning = parser.in_reasoning
        segments = parser.feed(text, self._logprob(event))
        self._output_tokens += 1
        # The tokens of the markers count as reasoning too.
        reasoning = reasoning or parser.in_reasoning or any(isinstance(s, ReasoningDelta) for s in segments)
        self._reasoning_tokens += reasoning
        return segments

    def finish(self) -> list[Segment]:
        """What the end of the sequence completes."""
        return self._parser.finish()

    def usage(self) -> Usage:
        """The tokens so far."""
        return Usage(
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            output_tokens_details=OutputTokensDetails(self._reasoning_tokens),
            total_tokens=self._input_tokens + self._output_tokens,
        )

    def _logprob(self, event: Sampled) -> TokenLogprob | None:
        if event.logprobs is None or event.finish_reason == "stop":  # the end token has no text
            return None
        spell = self._tokenizer.token_bytes
        return token_logprob(
            spell(event.token),
            event.logprobs.sampled,
            [(spell(token), value) for token, value in event.logprobs.top],
        )
