"""Rules for one event or one response object by itself."""

from __future__ import annotations

import json

from support.published import EVENT_TYPES, Json, event_differences, response_differences

# fmt: off
RESPONSE_KEYS = frozenset({
    "id", "object", "created_at", "completed_at", "status", "error", "incomplete_details",
    "instructions", "model", "output", "parallel_tool_calls", "tools", "tool_choice", "text",
    "truncation", "top_p", "temperature", "presence_penalty", "frequency_penalty", "top_logprobs",
    "reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "service_tier",
    "metadata", "previous_response_id", "conversation", "safety_identifier", "prompt_cache_key",
    "user",
})
# fmt: on
ITEM_KEYS = {
    "message": {"type", "id", "status", "role", "content"},
    "reasoning": {"type", "id", "status", "summary", "content"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "compaction": {"type", "id", "encrypted_content"},
}
ID_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "compaction": "cmp_"}
PART_KEYS = {
    "output_text": {"type", "text", "annotations", "logprobs"},
    "reasoning_text": {"type", "text"},
}
PART_TYPES = {"message": "output_text", "reasoning": "reasoning_text"}
EXTENSION_KEYS = {
    "mlx.compaction.started": {"type", "sequence_number", "response_id", "input_tokens"},
    "mlx.compaction.completed": {
        "type",
        "sequence_number",
        "response_id",
        "input_tokens_before",
        "input_tokens_after",
    },
}
UNFINISHED = {"queued", "in_progress"}


def validate_event(event: Json) -> None:
    """Check one event of a stream by itself."""
    kind = event.get("type")
    if kind in EXTENSION_KEYS:
        assert set(event) == EXTENSION_KEYS[kind], f"{kind}: keys {sorted(event)}"
        counts = [value for key, value in event.items() if key not in {"type", "response_id"}]
        assert all(type(count) is int and count >= 0 for count in counts), f"{kind}: {event}"
        return
    assert kind in EVENT_TYPES, f"not an event type of this server: {kind!r}"
    differences = event_differences(event)
    assert not differences, f"{kind}: {differences}"
    if "response" in event:
        _check_response(event["response"])
    if "item" in event:
        _check_item(event["item"])
    if "part" in event:
        _check_part(event["part"])
    if kind in {"response.output_text.delta", "response.output_text.done"}:
        assert "logprobs" in event, f"{kind}: no logprobs"
    if kind == "response.function_call_arguments.done":
        assert "name" in event, f"{kind}: no name"


def validate_response(response: Json) -> None:
    """Check a response object by itself: a JSON body, a stored response, a background job's state."""
    differences = response_differences(response)
    assert not differences, f"response: {differences}"
    _check_response(response)


def _check_response(response: Json) -> None:
    keys = set(response) - {"background"}
    assert keys == RESPONSE_KEYS, f"response keys: {sorted(keys ^ RESPONSE_KEYS)} missing or unknown"
    assert response.get("background", True) is True, "background is there on background responses only"
    assert response["id"].startswith("resp_"), f"response id {response['id']!r}"
    assert type(response["created_at"]) is int, f"created_at {response['created_at']!r}"
    for item in response["output"]:
        _check_item(item)
    status = response["status"]
    if status in UNFINISHED:
        assert response["output"] == [], f"output in a response that is {status}"
        assert _total(response["usage"]) == 0, f"usage in a response that is {status}"
    _check_outcome(response)
    _check_usage(response)
    if status not in UNFINISHED:
        _check_output(response)


def _check_outcome(response: Json) -> None:
    status = response["status"]
    completed_at = response["completed_at"]
    assert (completed_at is not None) == (status == "completed"), f"completed_at {completed_at} when {status}"
    if completed_at is not None:
        assert type(completed_at) is int, f"completed_at {completed_at!r}"
        assert completed_at >= response["created_at"], "completed before it was created"
    assert (response["error"] is not None) == (status == "failed"), f"error {response['error']} when {status}"
    details = response["incomplete_details"]
    expected = {"reason": "max_output_tokens"} if status == "incomplete" else None
    assert details == expected, f"incomplete_details {details} when {status}"


def _total(usage: Json) -> int:
    counts: list[int] = [usage[key] for key in ("input_tokens", "output_tokens", "total_tokens")]
    details: list[int] = [*usage["input_tokens_details"].values(), *usage["output_tokens_details"].values()]
    return sum(counts) + sum(details)


def _check_usage(response: Json) -> None:
    usage = response["usage"]
    given, sampled = usage["input_tokens"], usage["output_tokens"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    reasoning = usage["output_tokens_details"]["reasoning_tokens"]
    assert usage["total_tokens"] == given + sampled, f"usage does not add up: {usage}"
    assert 0 <= cached <= given, f"cached_tokens: {usage}"
    assert 0 <= reasoning <= sampled, f"reasoning_tokens: {usage}"
    texts = {item["type"] for item in response["output"] if _generated(item)}
    if texts:
        assert given > 0, f"output without a token of input: {usage}"
        assert sampled > 0, f"output without a sampled token: {usage}"
    if "reasoning" in texts:
        assert reasoning > 0, f"a reasoning item without a reasoning token: {usage}"


def _generated(item: Json) -> bool:
    """Whether a sampled token must be behind the item."""
    return item["type"] == "function_call" or any(part["text"] for part in item.get("content", []))


def _check_output(response: Json) -> None:
    status, output = response["status"], response["output"]
    answer = [item for item in output if item["type"] != "compaction"]
    if status in {"completed", "incomplete"}:
        assert answer, f"no item in a response that is {status}"
    for item in answer[:-1] if status != "completed" else answer:
        # A call that the model never ended is incomplete wherever it stands.
        assert item["status"] == "completed" or item["type"] == "function_call", f"{item} when {status}"
    if answer and status != "completed":
        assert answer[-1]["status"] == "incomplete", f"last item {answer[-1]} when {status}"
    for item in answer:
        empty = item["type"] in PART_TYPES and not _generated(item)
        assert not empty or len(answer) == 1, f"an empty item beside others: {output}"


def _check_item(item: Json) -> None:
    kind = item["type"]
    assert set(item) == ITEM_KEYS[kind], f"{kind} keys: {sorted(set(item) ^ ITEM_KEYS[kind])}"
    assert item["id"].startswith(ID_PREFIXES[kind]), f"{kind} id {item['id']!r}"
    for part in item.get("content", []):
        _check_part(part)
    if kind == "function_call":
        assert item["call_id"].startswith("call_"), f"call_id {item['call_id']!r}"
        if item["status"] == "completed":
            _check_json(item["arguments"])


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise AssertionError(f"arguments of a completed call are not JSON: {text!r}") from error


def _check_part(part: Json) -> None:
    kind = part["type"]
    assert set(part) == PART_KEYS[kind], f"{kind} keys: {sorted(set(part) ^ PART_KEYS[kind])}"
    if kind == "output_text":
        assert part["annotations"] == [], f"annotations {part['annotations']}"
