"""Cases about the response object, its limits and its usage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.bug_checks.check import Checks
from support.served import text_of

if TYPE_CHECKING:
    from support.case_runner import CaseRun
    from support.exchanges import Exchange

CHECKS = Checks()

LONG = {"emit": ["word "] * 40}


def assert_stopped_by_length(made: Exchange) -> None:
    response = made.response
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None
    assert response["output"][-1]["status"] == "incomplete"


async def assert_nothing_generated(run: CaseRun) -> None:
    health = await run.served.health()
    assert (health["steps"], health["sampled_tokens"], health["running"]) == (0, 0, 0)


@CHECKS("B026")
async def a_text_part_has_all_its_keys(run: CaseRun) -> None:
    (message,) = run.only.response["output"]
    expected = {"type": "output_text", "text": "Hello there.", "annotations": [], "logprobs": []}
    assert message["content"] == [expected]


@CHECKS("B027")
async def every_field_is_there_and_some_are_never_null(run: CaseRun) -> None:
    response = run.only.response
    assert text_of(response) == "Hello there."
    assert response["tools"] == []
    assert response["tool_choice"] == "auto"
    assert response["parallel_tool_calls"] is True
    assert response["truncation"] == "disabled"
    assert response["temperature"] == 1
    assert response["top_p"] == 1
    assert response["presence_penalty"] == response["frequency_penalty"] == response["top_logprobs"] == 0
    assert response["text"] == {"format": {"type": "text"}}
    assert response["metadata"] == {}
    assert isinstance(response["store"], bool)
    unset = [
        "error", "incomplete_details", "instructions", "reasoning", "max_output_tokens", "max_tool_calls",
        "previous_response_id", "conversation", "safety_identifier", "prompt_cache_key", "user",
    ]  # fmt: skip
    assert [response[key] for key in unset] == [None] * len(unset)


@CHECKS("B030")
async def usage_is_counted_in_full(run: CaseRun) -> None:
    assert text_of(run.only.response) == "Hello there."
    (prompt,) = run.served.engine.backend.prompts
    assert run.only.response["usage"] == {
        "input_tokens": len(prompt),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(prompt) + 4,
    }


@CHECKS("B032")
async def store_is_echoed_truthfully(run: CaseRun) -> None:
    response = run.only.response
    found = await run.served.client.get(f"/v1/responses/{response['id']}")
    assert response["store"] is (found.status_code == 200)
    assert (await run.again(store=False)).response["store"] is False


@CHECKS("B151", rows=(LONG,))
async def a_length_stop_is_incomplete(run: CaseRun) -> None:
    assert_stopped_by_length(run.only)
    assert text_of(run.only.response) == "word " * 16
    assert run.only.response["usage"]["output_tokens"] == 16
    assert_stopped_by_length(await run.again(stream=True))


@CHECKS("B152")
async def a_prompt_that_does_not_fit_is_refused(run: CaseRun) -> None:
    message = run.only.refused("input", "context_length_exceeded")
    assert "8192" in message
    await assert_nothing_generated(run)


@CHECKS("B154")
async def truncation_is_refused_by_name(run: CaseRun) -> None:
    assert "disabled" in run.only.refused("truncation")
    assert (await run.again(truncation="disabled")).response["truncation"] == "disabled"


@CHECKS("B155")
async def a_prompt_that_does_not_fit_opens_no_stream(run: CaseRun) -> None:
    run.only.refused("input", "context_length_exceeded")
    assert run.only.events == []
    await assert_nothing_generated(run)


@CHECKS("B156", context_window=256)
async def generation_ends_with_the_window(run: CaseRun) -> None:
    assert_stopped_by_length(run.only)
    assert run.only.response["max_output_tokens"] is None
    assert run.only.response["usage"]["total_tokens"] == 256


@CHECKS("B157")
async def one_token_is_enough_and_none_is_not(run: CaseRun) -> None:
    assert_stopped_by_length(run.only)
    assert run.only.response["usage"]["output_tokens"] == 1
    for value in (0, -1):
        assert "at least 1" in (await run.again(max_output_tokens=value)).refused("max_output_tokens")


@CHECKS("B160")
async def a_stop_string_over_tokens_is_never_seen(run: CaseRun) -> None:
    assert [event["delta"] for event in run.only.of_type("output_text.delta")] == ["keel "]
    assert text_of(run.only.response) == "keel "
    assert run.only.response["status"] == "completed"
    assert run.only.response["usage"]["output_tokens"] == 3


@CHECKS("B161")
async def the_end_token_has_no_text(run: CaseRun) -> None:
    streamed = await run.again(stream=True)
    for made in (run.only, streamed):
        assert text_of(made.response) == "Hello"
        assert made.response["status"] == "completed"
    assert [event["delta"] for event in streamed.of_type("output_text.delta")] == ["Hello"]


@CHECKS("B164")
async def metadata_is_echoed_within_its_limits(run: CaseRun) -> None:
    assert run.only.response["metadata"] == {"trace_id": "t-19"}
    largest = {f"{number:064}": "v" * 512 for number in range(16)}
    assert (await run.again(metadata=largest)).response["metadata"] == largest
    for metadata in ({str(number): "" for number in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}):
        (await run.again(metadata=metadata)).refused("metadata")


@CHECKS("B166")
async def top_logprobs_has_a_range(run: CaseRun) -> None:
    assert "0 to 20" in run.only.refused("top_logprobs")
    (await run.again(top_logprobs=-1)).refused("top_logprobs")
    # A script is certain: the token itself is its one alternative. A model's are tested in tests/real.
    for count in (0, 1, 20):
        response = (await run.again(top_logprobs=count)).response
        assert response["top_logprobs"] == count
        (part,) = response["output"][0]["content"]
        alternatives = [[top["token"] for top in entry["top_logprobs"]] for entry in part["logprobs"]]
        assert alternatives == ([["Hel"], ["lo"], [" there."]] if count else [])


@CHECKS("B168")
async def instructions_are_text(run: CaseRun) -> None:
    run.only.refused("instructions")
    (await run.again(instructions=["a"])).refused("instructions")
