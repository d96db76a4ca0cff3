"""Input items and their content parts, as clients send them.

One struct with optional fields serves every item type: clients leave ``type`` out of messages, which a
tagged union cannot express, and one struct decodes fastest. ``core.validation`` decides which fields
an item type needs. Unknown keys are ignored by the decoder.
"""

from __future__ import annotations

from msgspec import Struct


class InputPart(Struct, frozen=True, gc=False):
    """A content part: ``input_text``, ``output_text``, ``refusal``, ``reasoning_text``, media, ..."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class InputItem(Struct, frozen=True):
    """An element of ``input``: a message, a call, its output, reasoning, a compaction, a reference."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
