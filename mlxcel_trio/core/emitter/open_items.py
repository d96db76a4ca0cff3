"""The item that still grows: one class per kind, each knowing the events that frame its kind.

Text is kept in pieces and joined once, so an answer of n deltas costs O(n).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mlxcel_trio.protocol.events import (
    ContentPartAdded,
    ContentPartDone,
    Event,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
)
from mlxcel_trio.protocol.responses import (
    ContentPart,
    FunctionCall,
    ItemStatus,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
    TokenLogprob,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_trio.core.parsing.segments import ReasoningDelta, TextDelta

FinalStatus = Literal["completed", "incomplete"]


class OpenItem:
    """An item that still grows: its place in the stream and the events that frame it."""

    def __init__(self, number: Callable[[], int], item_id: str, output_index: int) -> None:
        self._number = number
        self._id = item_id
        self._index = output_index

    def close(self, status: FinalStatus) -> tuple[OutputItem, list[Event]]:
        """The final item, and the events that finish it; ``status`` is what the stream's course implies."""
        raise NotImplementedError

    def _added(self, item: OutputItem) -> Event:
        return OutputItemAdded(sequence_number=self._number(), output_index=self._index, item=item)

    def _done(self, item: OutputItem) -> Event:
        return OutputItemDone(sequence_number=self._number(), output_index=self._index, item=item)

    def _part_added(self, part: ContentPart) -> Event:
        return ContentPartAdded(
            sequence_number=self._number(),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            part=part,
        )

    def _part_done(self, part: ContentPart) -> Event:
        return ContentPartDone(
            sequence_number=self._number(),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            part=part,
        )


class OpenMessage(OpenItem):
    """A message with its one text part."""

    def __init__(self, number: Callable[[], int], item_id: str, output_index: int) -> None:
        super().__init__(number, item_id, output_index)
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def begin(self) -> list[Event]:
        return [self._added(self._item("in_progress")), self._part_added(OutputText(""))]

    def append(self, segment: TextDelta) -> Event:
        self._texts.append(segment.text)
        self._logprobs.extend(segment.logprobs)
        return OutputTextDelta(
            sequence_number=self._number(),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            delta=segment.text,
            logprobs=segment.logprobs,
        )

    def close(self, status: FinalStatus) -> tuple[OutputItem, list[Event]]:
        part = OutputText("".join(self._texts), logprobs=tuple(self._logprobs))
        text_done = OutputTextDone(
            sequence_number=self._number(),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            text=part.text,
            logprobs=part.logprobs,
        )
        item = self._item(status, part)
        return item, [text_done, self._part_done(part), self._done(item)]

    def _item(self, status: ItemStatus, *content: OutputText) -> Message:
        return Message(self._id, status, content)


class OpenReasoning(OpenItem):
    """A reasoning item with its one text part."""

    def __init__(self, number: Callable[[], int], item_id: str, output_index: int) -> None:
        super().__init__(number, item_id, output_index)
        self._texts: list[str] = []

    def begin(self) -> list[Event]:
        return [self._added(self._item("in_progress")), self._part_added(ReasoningText(""))]

    def append(self, segment: ReasoningDelta) -> Event:
        self._texts.append(segment.text)
        return ReasoningTextDelta(
            sequence_number=self._number(),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            delta=segment.text,
        )

    def close(self, status: FinalStatus) -> tuple[OutputItem, list[Event]]:
        part = ReasoningText("".join(self._texts))
        text_done = ReasoningTextDone(
            sequence_number=self._number(),
            item_id=self._id,
            output_index=self._index,
            content_index=0,
            text=part.text,
        )
        item = self._item(status, part)
        return item, [text_done, self._part_done(part), self._done(item)]

    def _item(self, status: ItemStatus, *content: ReasoningText) -> Reasoning:
        return Reasoning(self._id, status, content)


class OpenCall(OpenItem):
    """A function call; ``ended`` once its arguments are done."""

    def __init__(
        self, number: Callable[[], int], item_id: str, output_index: int, call_id: str, name: str
    ) -> None:
        super().__init__(number, item_id, output_index)
        self._call_id = call_id
        self._name = name
        self._fragments: list[str] = []
        self.ended = False

    def begin(self) -> list[Event]:
        return [self._added(self._item("in_progress", ""))]

    def append(self, fragment: str) -> Event:
        self._fragments.append(fragment)
        return FunctionCallArgumentsDelta(
            sequence_number=self._number(),
            item_id=self._id,
            output_index=self._index,
            delta=fragment,
        )

    def end(self, arguments: str) -> list[Event]:
        streamed = "".join(self._fragments)
        if not arguments.startswith(streamed):
            raise ValueError(
                f"The arguments of the call of {self._name!r} do not start with what was streamed."
            )
        # A function without parameters: clients parse the arguments as JSON, which "" is not.
        unsent = (arguments or "{}")[len(streamed) :]
        events = [self.append(unsent)] if unsent else []
        self.ended = True
        return [*events, self._arguments_done()]

    def close(self, status: FinalStatus) -> tuple[OutputItem, list[Event]]:
        events = [] if self.ended else [self._arguments_done()]
        item = self._item(status if self.ended else "incomplete", "".join(self._fragments))
        return item, [*events, self._done(item)]

    def _arguments_done(self) -> Event:
        return FunctionCallArgumentsDone(
            sequence_number=self._number(),
            item_id=self._id,
            output_index=self._index,
            name=self._name,
            arguments="".join(self._fragments),
        )

    def _item(self, status: ItemStatus, arguments: str) -> FunctionCall:
        return FunctionCall(self._id, self._call_id, self._name, arguments, status)
