"""Segments: typed pieces of parsed model output, in order of generation.

Parsers produce them, the emitter turns them into items and events. Two neighbouring segments of the same
kind belong to the same item, except calls: each ``CallStart`` opens a new one.
"""

from __future__ import annotations

from msgspec import Struct

from mlxcel_trio.protocol.responses import TokenLogprob


class TextDelta(Struct, frozen=True):
    """More text of the answer; never empty."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(Struct, frozen=True):
    """More reasoning text; never empty."""

    text: str


class CallStart(Struct, frozen=True):
    """A function call begins; its name is known."""

    name: str


class CallArgumentsDelta(Struct, frozen=True):
    """More of the open call's arguments, a fragment of JSON text; never empty."""

    fragment: str


class CallEnd(Struct, frozen=True):
    """The open call is complete. ``arguments`` is authoritative: it starts with all fragments so far."""

    arguments: str


Segment = TextDelta | ReasoningDelta | CallStart | CallArgumentsDelta | CallEnd
