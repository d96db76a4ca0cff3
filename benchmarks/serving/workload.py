"""What is generated: prompts that share nothing, and how many of them at once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from msgspec import Struct

from mlxcel_trio.core.messages import ChatMessage

if TYPE_CHECKING:
    from mlxcel_trio.engine.tokenizer import ChatTokenizer

JOIN_AFTER_TOKENS = 8
"""A late prompt is sent when every earlier stream has so many tokens."""

_ADJECTIVES = (
    "amber", "brittle", "crooked", "dusty", "electric", "frozen", "gilded", "hollow", "ivory", "jagged",
    "kindly", "lonely", "muddy", "narrow", "oaken", "patient", "quiet", "rusty", "silver", "tangled",
    "uneven", "velvet", "wooden", "yellow",
)  # fmt: skip
_NOUNS = (
    "anchor", "bridge", "candle", "drum", "engine", "falcon", "garden", "harbour", "island", "jacket",
    "kettle", "lantern", "mirror", "needle", "orchard", "pepper", "quarry", "river", "saddle", "tunnel",
    "umbrella", "violin", "window", "yard",
)  # fmt: skip


class Prompt(Struct, frozen=True):
    """A user's message, and the token ids that the model's chat template makes of it."""

    text: str
    tokens: tuple[int, ...]


class Workload(Struct, frozen=True, kw_only=True):
    """``prompts`` are sent at once, ``late`` when they all decode; each gets at most ``max_tokens``."""

    name: str
    prompts: tuple[Prompt, ...]
    late: Prompt | None = None
    max_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together, as our tokenizer counts them."""
        everyone = self.prompts if self.late is None else (*self.prompts, self.late)
        return sum(len(prompt.tokens) for prompt in everyone)


def streams_at_once(count: int) -> str:
    """What a workload of so many prompts at once is called."""
    return f"{count} stream{'s' if count > 1 else ''}"


class PromptWriter:
    """Writes prompts that differ from their first words on and ask for answers that do not end soon."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._written = 0
        self._random = random.Random(1)  # noqa: S311 - the same prompts in every run

    def write(self, tokens: int) -> Prompt:
        """A prompt of ``tokens`` tokens, template included, or the fewest above that can be had."""
        self._written += 1
        subject = f"{self._thing().capitalize()} number {self._written}"
        opening = f"{subject}: write the first chapter of a very long novel, full of details, with"
        things: list[str] = []
        while True:
            prompt = self._rendered(f"{opening} {', '.join([*things, self._thing()])}.")
            missing = tokens - len(prompt.tokens)
            if missing <= 0:
                return prompt
            # A thing takes three tokens at least, so this never overshoots by much.
            things += [self._thing() for _ in range(max(1, missing // 8))]

    def _thing(self) -> str:
        return f"{self._random.choice(_ADJECTIVES)} {self._random.choice(_NOUNS)}"

    def _rendered(self, text: str) -> Prompt:
        return Prompt(text, self._tokenizer.render([ChatMessage("user", text)]).tokens)
