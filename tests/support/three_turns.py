"""A dialogue of three turns, for clients that keep its history each in their own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.stored_state import turns

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from support.served import Served

TEXTS = ("I am Ann.", "Who am I?", "Goodbye.")
ANSWERS = ["Hello Ann.", "You are Ann.", "Bye."]
ROWS = (
    ScriptRow(when=TEXTS[0], emit=("Hello", " Ann.")),
    ScriptRow(when=TEXTS[1], emit=("<think>", "hm", "</think>", "\n\n", "You are", " Ann.")),
    ScriptRow(when=TEXTS[2], emit=("Bye.",)),
)


def assert_whole_history(served: Served, *, system: str | None = None) -> None:
    """Fail unless the model was asked three times, each time with all that had been said before, once."""
    assert len(served.engine.prompts()) == len(TEXTS)
    said = [] if system is None else [f"system: {system}"]
    for number, (text, answer) in enumerate(zip(TEXTS, ANSWERS, strict=True)):
        said.append(f"user: {text}")
        assert turns(served, number) == said
        said.append(f"assistant: {answer}")
