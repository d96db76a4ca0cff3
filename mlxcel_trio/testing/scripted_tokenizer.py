"""The tiny test model's tokenizer and chat template, with a token of its own for every chunk of a script.

The template speaks ChatML with Hermes tool calls and ``<think>`` reasoning.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mlxcel_trio.engine.tokenizer import ChatTokenizer, RenderedPrompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcel_trio.core.messages import ChatMessage
    from mlxcel_trio.testing.script import Script

TOKENIZER_DIRECTORY = Path(__file__).with_name("tokenizer")


def load_scripted_tokenizer(script: Script) -> ScriptedTokenizer:
    """The shipped tokenizer, playing ``script``; takes seconds."""
    tokenizer = ScriptedTokenizer.load(TOKENIZER_DIRECTORY)
    tokenizer.play(script)
    return tokenizer


class ScriptedTokenizer(ChatTokenizer):
    """Renders as the tiny model does, then appends what the answering script row asks for."""

    def play(self, script: Script) -> None:
        """Number the chunks of ``script`` and render for it from now on; called once."""
        self._script = script
        self._turn_start, self._turn_end = (
            self.encode_markup(text)[0] for text in ("<|im_start|>", "<|im_end|>")
        )
        self._chunk_tokens: dict[bytes, int] = {}
        spelled = self._token_bytes
        assert spelled is not None  # noqa: S101 - the shipped tokenizer is byte-level
        for chunk in dict.fromkeys(chunk for row in script.rows for chunk in row.chunks):
            token = self._added_token(chunk)
            if token is None:
                token = self.vocabulary_size
                self.vocabulary_size += 1
                spelled[token] = chunk
            self._chunk_tokens[chunk] = token

    def _added_token(self, chunk: bytes) -> int | None:
        text = chunk.decode("utf-8", "replace")
        tokens = self.encode_markup(text)
        return tokens[0] if len(tokens) == 1 and tokens != self.encode_text(text) else None

    def chunk_token(self, chunk: bytes) -> int:
        """The token that stands for a chunk of the script."""
        return self._chunk_tokens[chunk]

    def last_user_text(self, prompt: Sequence[int]) -> str:
        """What follows the last assistant turn of a rendered prompt, up to the turn that it opens.

        That is user text or tool results; without an assistant turn, system text comes before.
        """
        starts = [index for index, token in enumerate(prompt) if token == self._turn_start]
        opened = starts[-1] if starts else len(prompt)
        for start, end in reversed(list(pairwise(starts))):
            if self.decode(prompt[start + 1 : end]).startswith("assistant\n"):
                return self.decode(prompt[end:opened])
        return self.decode(prompt[:opened])

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """See :meth:`ChatTokenizer.render`."""
        prompt = super().render(messages, tools=tools, template_kwargs=template_kwargs)
        suffix = self._script.peek(self.last_user_text(prompt.tokens)).prompt_ends_with
        if not suffix:
            return prompt
        return msgspec.structs.replace(
            prompt,
            tokens=(*prompt.tokens, *self.encode_markup(suffix)),
            opens_reasoning=suffix.rstrip().endswith("<think>"),
        )
