"""Rules that tie the events of a stream together: numbers, brackets, ids, and deltas that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.objects import EXTENSION_KEYS, PART_TYPES, RESPONSE_KEYS, validate_event

if TYPE_CHECKING:
    from support.published import Json

TERMINAL_STATUSES = {
    "response.completed": {"completed"},
    "response.incomplete": {"incomplete", "cancelled"},
    "response.failed": {"failed"},
}
ENDING_KEYS = {"status", "output", "usage", "completed_at", "error", "incomplete_details"}


class StreamChecker:
    """Follows one stream event by event; what it has accepted so far is the start of a valid stream."""

    def __init__(self) -> None:
        self._count = 0
        self._skeleton: Json | None = None
        self._final: Json | None = None
        self._items: list[Json] = []
        self._open: _ItemChecker | None = None
        self._ids: set[str] = set()
        self._compaction: Json | None = None

    def feed(self, event: Json) -> None:
        """Check the next event."""
        try:
            self._feed(event)
        except AssertionError as error:
            raise AssertionError(f"event {self._count} of the stream: {error}") from None
        self._count += 1

    def finish(self) -> Json:
        """Check that the stream may end here; returns its final response."""
        assert self._final is not None, f"the stream ends after {self._count} events, without a terminal one"
        return self._final

    def _feed(self, event: Json) -> None:
        validate_event(event)
        kind = event["type"]
        number = event["sequence_number"]
        assert number == self._count, f"sequence_number {number}, expected {self._count}"
        assert self._final is None, f"{kind} after the terminal event"
        if self._count < 2:
            expected = ("response.created", "response.in_progress")[self._count]
            assert kind == expected, f"{kind} where {expected} is due"
        if kind in TERMINAL_STATUSES:
            self._end(event)
        elif "response" in event:
            self._repeat(event)
        elif kind in EXTENSION_KEYS:
            self._compact(event)
        elif kind == "response.output_item.added":
            self._add(event)
        else:
            self._continue(event)

    def _repeat(self, event: Json) -> None:
        if self._skeleton is None:
            self._skeleton = event["response"]
            self._take_id(event["response"]["id"])
        else:
            assert event["type"] == "response.in_progress", f"a second {event['type']}"
        assert event["response"] == self._skeleton, f"the response changed before its end: {event}"
        assert event["response"]["status"] == "in_progress", f"status of {event}"

    def _compact(self, event: Json) -> None:
        assert self._skeleton is not None
        assert event["response_id"] == self._skeleton["id"], f"response_id of {event}"
        assert not self._items, f"{event['type']} after an output item"
        assert self._open is None, f"{event['type']} inside an output item"
        if event["type"] == "mlx.compaction.started":
            assert self._compaction is None, "a second mlx.compaction.started"
        else:
            assert self._compaction is not None, "mlx.compaction.completed before started"
            assert self._compaction["type"] == "mlx.compaction.started", "a second mlx.compaction.completed"
            before = self._compaction["input_tokens"]
            assert event["input_tokens_before"] == before, f"{event}, started with {before}"
        self._compaction = event

    def _add(self, event: Json) -> None:
        item = event["item"]
        assert self._open is None, f"{event} inside an open item"
        assert event["output_index"] == len(self._items), f"output_index of {event}"
        if item["type"] == "compaction":
            assert not self._items, "a compaction item after other output"
        self._take_id(item["id"])
        if "call_id" in item:
            self._take_id(item["call_id"])
        self._open = _ItemChecker(event)

    def _continue(self, event: Json) -> None:
        assert self._open is not None, f"{event['type']} outside an item"
        done = self._open.feed(event)
        if done is not None:
            self._items.append(done)
            self._open = None

    def _end(self, event: Json) -> None:
        response = event["response"]
        assert self._skeleton is not None
        assert self._open is None, f"{event['type']} while an item is open"
        assert response["status"] in TERMINAL_STATUSES[event["type"]], f"status of {event}"
        assert response["output"] == self._items, f"output {response['output']}, items done {self._items}"
        for key in RESPONSE_KEYS - ENDING_KEYS:
            assert response[key] == self._skeleton[key], f"{key} changed to {response[key]!r}"
        self._final = response

    def _take_id(self, value: str) -> None:
        assert value not in self._ids, f"id {value} is used twice"
        self._ids.add(value)


class _ItemChecker:
    """The events between an item's added and done."""

    def __init__(self, added: Json) -> None:
        self._item: Json = added["item"]
        self._index: int = added["output_index"]
        self._parts: list[Json] = []
        self._part: _PartChecker | None = None
        self._fragments: list[str] = []
        self._arguments: str | None = None
        if self._item["type"] != "compaction":
            empty = {"content": [], "arguments": "", "summary": [], "status": "in_progress"}
            given = {key: self._item[key] for key in empty if key in self._item}
            assert all(given[key] == empty[key] for key in given), f"not empty when added: {self._item}"

    def feed(self, event: Json) -> Json | None:
        """Check the next event; returns the item when the event ends it."""
        kind: str = event["type"]
        assert event["output_index"] == self._index, f"output_index of {event}, the open one is {self._index}"
        if kind == "response.output_item.done":
            return self._done(event["item"])
        assert event["item_id"] == self._item["id"], (
            f"item_id of {event}, the open item is {self._item['id']}"
        )
        if kind == "response.content_part.added":
            self._add_part(event)
        elif kind.startswith("response.function_call_arguments."):
            self._feed_arguments(event)
        else:
            self._feed_part(event)
        return None

    def _add_part(self, event: Json) -> None:
        assert self._part is None, f"{event} inside an open part"
        assert event["content_index"] == len(self._parts), f"content_index of {event}"
        expected = PART_TYPES.get(self._item["type"])
        assert event["part"]["type"] == expected, f"{event} in an item of type {self._item['type']}"
        self._part = _PartChecker(event)

    def _feed_part(self, event: Json) -> None:
        assert self._part is not None, f"{event['type']} outside a part"
        done = self._part.feed(event)
        if done is not None:
            self._parts.append(done)
            self._part = None

    def _feed_arguments(self, event: Json) -> None:
        assert self._item["type"] == "function_call", f"{event['type']} in a {self._item['type']}"
        assert self._arguments is None, f"{event['type']} after the arguments were done"
        if event["type"] == "response.function_call_arguments.delta":
            assert event["delta"], "an empty delta of arguments"
            self._fragments.append(event["delta"])
            return
        self._arguments = event["arguments"]
        joined = "".join(self._fragments)
        assert self._arguments == joined, f"arguments {self._arguments!r}, deltas {joined!r}"
        assert event["name"] == self._item["name"], f"name of {event}, the call is {self._item['name']}"

    def _done(self, item: Json) -> Json:
        assert self._part is None, "output_item.done while a part is open"
        expected = dict(self._item)
        if "status" in item:
            assert item["status"] in {"completed", "incomplete"}, f"status of {item}"
            expected["status"] = item["status"]
        if item["type"] in PART_TYPES:
            assert self._parts, f"{item['type']} without a part"
            expected["content"] = self._parts
        if item["type"] == "function_call":
            assert self._arguments is not None, "output_item.done before function_call_arguments.done"
            expected["arguments"] = self._arguments
        assert item == expected, f"item done {item}, its events make {expected}"
        return item


class _PartChecker:
    """The events between a part's added and done."""

    def __init__(self, added: Json) -> None:
        self._part: Json = added["part"]
        self._index: int = added["content_index"]
        self._texts: list[str] = []
        self._logprobs: list[Json] = []
        self._text: str | None = None
        assert not self._part["text"], f"a part with text when added: {self._part}"
        assert not self._part.get("logprobs"), f"a part with logprobs when added: {self._part}"

    def feed(self, event: Json) -> Json | None:
        """Check the next event; returns the part when the event ends it."""
        kind: str = event["type"]
        assert event["content_index"] == self._index, (
            f"content_index of {event}, the open one is {self._index}"
        )
        if kind == "response.content_part.done":
            return self._done(event["part"])
        expected = f"response.{self._part['type']}."
        assert kind.startswith(expected), f"{kind} in a part of type {self._part['type']}"
        assert self._text is None, f"{kind} after the text was done"
        if kind.endswith(".delta"):
            assert event["delta"], "an empty delta of text"
            self._texts.append(event["delta"])
            self._logprobs += event.get("logprobs", [])
        else:
            self._text = event["text"]
            joined = "".join(self._texts)
            assert self._text == joined, f"text {self._text!r}, deltas {joined!r}"
            assert event.get("logprobs", []) == self._logprobs, (
                f"logprobs of {kind} are not those of its deltas"
            )
        return None

    def _done(self, part: Json) -> Json:
        assert self._text is not None, "content_part.done before the text was done"
        expected = {**self._part, "text": self._text}
        if "logprobs" in expected:
            expected["logprobs"] = self._logprobs
        assert part == expected, f"part done {part}, its events make {expected}"
        return part
