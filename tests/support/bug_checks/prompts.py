"""What the model was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.served import text_of

if TYPE_CHECKING:
    from support.case_runner import CaseRun

GENERATION = "<|im_start|>assistant\n"
ANSWER = "Hello there."
"""What a case without an engine of its own is answered."""


def turn(role: str, text: str) -> str:
    """A turn as the scripted model's template writes it."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def prompt(*turns: str) -> str:
    """A rendered prompt of these turns."""
    return "".join(turns) + GENERATION


def dialogue(*texts: str) -> str:
    """The prompt in which a user said these texts, and got :data:`ANSWER` each time but the last."""
    return prompt(turn("assistant", ANSWER).join(turn("user", text) for text in texts))


def assert_prompt(run: CaseRun, *turns: str) -> None:
    """The last prompt had these turns, and the case was answered."""
    assert run.served.engine.prompts()[-1:] == [prompt(*turns)]
    assert text_of(run.exchanges[-1].response) == ANSWER
