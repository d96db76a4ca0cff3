"""The state machine between parsed model output and the wire.

One emitter serves one response, whether anybody streams it or not: the object it ends with is the JSON body,
the stored response and the one inside the terminal event. It is pure, and not meant to be shared between
threads. A call that raises has emitted nothing and used no number, so ``finish(Failed(...))`` can follow it.

An item opens at its first segment and stays open until a segment of another item, or the end, closes it:
only then is its status known. The arguments of a call are done at its ``CallEnd``, its item a little later.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mlxcel_trio.core.emitter.open_items import OpenCall, OpenMessage, OpenReasoning
from mlxcel_trio.core.parsing.segments import (
    CallArgumentsDelta,
    CallEnd,
    CallStart,
    ReasoningDelta,
    Segment,
    TextDelta,
)
from mlxcel_trio.protocol.events import (
    CompactionCompleted,
    CompactionStarted,
    Event,
    OutputItemAdded,
    OutputItemDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    TerminalEvent,
)
from mlxcel_trio.protocol.responses import (
    Compaction,
    IncompleteDetails,
    OutputItem,
    Response,
    ResponseError,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcel_trio.core.emitter.open_items import FinalStatus


class Completed(Struct, frozen=True):
    """The model ended its answer, or a stop sequence did."""


class LengthStop(Struct, frozen=True):
    """The bound on output tokens was reached; the last item is incomplete."""


class Cancelled(Struct, frozen=True):
    """Somebody cancelled the response; it keeps its output and the last item is incomplete."""


class Failed(Struct, frozen=True):
    """Generation failed; the response keeps its output and the last item is incomplete."""

    error: ResponseError


Ending = Completed | LengthStop | Cancelled | Failed


class Emitter:
    """Numbers the events of one response and builds its final object.

    :param response: the skeleton that ``created`` and ``in_progress`` carry: status in_progress, no output.
    :param new_id: makes a fresh id from a prefix, ``"msg"`` to ``"msg_<hex>"``.
    """

    def __init__(self, response: Response, new_id: Callable[[str], str]) -> None:
        self._response = response
        self._new_id = new_id
        self._number = count().__next__
        self._items: list[OutputItem] = []
        self._open: OpenMessage | OpenReasoning | OpenCall | None = None
        self._started = False
        self._finished = False

    @property
    def response(self) -> Response:
        """The skeleton until ``finish``, the final object from then on."""
        return self._response

    def start(self) -> list[Event]:
        """Open the stream.

        :raises RuntimeError: when called twice.
        """
        if self._started:
            raise RuntimeError("The emitter was started before. Use one emitter per response.")
        self._started = True
        created = ResponseCreated(sequence_number=self._number(), response=self._response)
        return [created, self.ping()]

    def ping(self) -> Event:
        """``response.in_progress`` once more, for use in silence.

        :raises RuntimeError: before ``start`` or after ``finish``, as with every method below.
        """
        self._check_running()
        return ResponseInProgress(sequence_number=self._number(), response=self._response)

    def compaction_started(self, input_tokens: int) -> Event:
        """Announce a compaction; ``input_tokens`` counts the rendered input before it."""
        self._check_before_output()
        return CompactionStarted(
            sequence_number=self._number(), response_id=self._response.id, input_tokens=input_tokens
        )

    def compaction_completed(self, input_tokens_before: int, input_tokens_after: int) -> Event:
        """Report a compaction; both counts are tokens of rendered input."""
        self._check_before_output()
        return CompactionCompleted(
            sequence_number=self._number(),
            response_id=self._response.id,
            input_tokens_before=input_tokens_before,
            input_tokens_after=input_tokens_after,
        )

    def add_compaction(self, item: Compaction) -> list[Event]:
        """Put the compaction item at the head of the output; it is complete from the start."""
        self._check_before_output()
        self._items.append(item)
        return [
            OutputItemAdded(sequence_number=self._number(), output_index=0, item=item),
            OutputItemDone(sequence_number=self._number(), output_index=0, item=item),
        ]

    def feed(self, segment: Segment) -> list[Event]:
        """The events that one more segment causes.

        A call that another item follows before its ``CallEnd`` is closed as incomplete.

        :raises RuntimeError: for arguments or an end of a call while no call awaits them.
        :raises ValueError: for a ``CallEnd`` whose arguments contradict the fragments before it.
        """
        self._check_running()
        match segment:
            case TextDelta():
                message, events = self._message()
                return [*events, message.append(segment)]
            case ReasoningDelta():
                reasoning, events = self._reasoning()
                return [*events, reasoning.append(segment)]
            case CallStart(name):
                return self._begin_call(name)
            case CallArgumentsDelta(fragment):
                return [self._unended_call().append(fragment)]
            case CallEnd(arguments):
                return self._unended_call().end(arguments)

    def finish(self, ending: Ending, usage: Usage, now: int) -> list[Event]:
        """Close what is open and end the stream with its terminal event.

        :param usage: the token counts of the whole response.
        :param now: Unix time in seconds, ``completed_at`` of a completed response.
        """
        self._check_running()
        events: list[Event] = []
        # Once the model has said anything, an item is open.
        if self._open is None and isinstance(ending, Completed | LengthStop):
            _, events = self._message()
        events += self._close("completed" if isinstance(ending, Completed) else "incomplete")
        terminal = self._terminal(ending, usage, now)
        self._response = terminal.response
        self._finished = True
        return [*events, terminal]

    def _check_running(self) -> None:
        if not self._started:
            raise RuntimeError("The emitter is not started. Call start() first.")
        if self._finished:
            raise RuntimeError("The emitter is finished. Use one emitter per response.")

    def _check_before_output(self) -> None:
        self._check_running()
        if self._items or self._open is not None:
            raise RuntimeError("A compaction precedes all output, and there is output already.")

    def _message(self) -> tuple[OpenMessage, list[Event]]:
        if isinstance(self._open, OpenMessage):
            return self._open, []
        events = self._close("completed")
        self._open = message = OpenMessage(self._number, self._new_id("msg"), len(self._items))
        return message, events + message.begin()

    def _reasoning(self) -> tuple[OpenReasoning, list[Event]]:
        if isinstance(self._open, OpenReasoning):
            return self._open, []
        events = self._close("completed")
        self._open = reasoning = OpenReasoning(self._number, self._new_id("rs"), len(self._items))
        return reasoning, events + reasoning.begin()

    def _begin_call(self, name: str) -> list[Event]:
        events = self._close("completed")
        item_id, call_id = self._new_id("fc"), self._new_id("call")
        self._open = call = OpenCall(self._number, item_id, len(self._items), call_id, name)
        return events + call.begin()

    def _unended_call(self) -> OpenCall:
        if not isinstance(self._open, OpenCall) or self._open.ended:
            raise RuntimeError("No call awaits arguments. A CallStart must come first.")
        return self._open

    def _close(self, status: FinalStatus) -> list[Event]:
        if self._open is None:
            return []
        item, events = self._open.close(status)
        self._items.append(item)
        self._open = None
        return events

    def _terminal(self, ending: Ending, usage: Usage, now: int) -> TerminalEvent:
        number = self._number()
        response = replace(self._response, output=tuple(self._items), usage=usage)
        match ending:
            case Completed():
                response = replace(response, status="completed", completed_at=now)
                return ResponseCompleted(sequence_number=number, response=response)
            case LengthStop():
                details = IncompleteDetails("max_output_tokens")
                response = replace(response, status="incomplete", incomplete_details=details)
                return ResponseIncomplete(sequence_number=number, response=response)
            case Cancelled():
                response = replace(response, status="cancelled")
                return ResponseIncomplete(sequence_number=number, response=response)
            case Failed(error):
                response = replace(response, status="failed", error=error)
                return ResponseFailed(sequence_number=number, response=response)
