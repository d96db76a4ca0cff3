"""Cases about what a model writes, about several requests at once, clients that leave, and transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.bug_checks.check import Checks
from support.bug_checks.jobs import job_of
from support.served import reasoning_of, text_of

from mlxcel_trio.settings import Settings

if TYPE_CHECKING:
    from support.case_runner import CaseRun
    from support.exchanges import Exchange

CHECKS = Checks()

ENDLESS = {"emit": ["la "], "forever": True, "delay": 0.01}
THINKS = {"emit": ["<think>", "hm", "</think>", "\n\n", "Hello"]}
KEY = {"api_keys": ("sesame",)}


def item_types(made: Exchange) -> list[str]:
    return [item["type"] for item in made.response["output"]]


def deltas(made: Exchange, kind: str) -> list[str]:
    return [event["delta"] for event in made.of_type(f"{kind}.delta")]


# Reasoning


@CHECKS("B134")
async def a_block_that_the_prompt_opened_is_reasoning(run: CaseRun) -> None:
    deltas = [(event["type"], event["delta"]) for event in run.only.events if "delta" in event]
    assert deltas[:1] == [("response.reasoning_text.delta", "so four")]
    assert reasoning_of(run.only.response) == "so four"
    assert text_of(run.only.response) == "4"
    assert "think>" not in str(run.only.events)


THOUGHT = "<think>secret</think>Answer"
CUTS = [
    *({"when": f"cut {at}.", "emit": [THOUGHT[:at], THOUGHT[at:]]} for at in range(1, len(THOUGHT))),
    {"when": "letters.", "emit": list(THOUGHT)},
]


@CHECKS("B135", rows=CUTS, engine={"when": "x"})
async def markers_are_found_wherever_chunks_end(run: CaseRun) -> None:
    made = [run.only, *[await run.again(input=cut["when"]) for cut in CUTS]]
    assert len(made) == len(THOUGHT) + 1
    for each in made:
        assert reasoning_of(each.response) == "secret"
        assert text_of(each.response) == "Answer"
        assert "think" not in str(each.events)


@CHECKS("B137", rows=(THINKS,))
async def a_trace_is_a_reasoning_item(run: CaseRun) -> None:
    assert item_types(run.only) == ["reasoning", "message"]
    assert reasoning_of(run.only.response) == "hm"
    assert run.only.response["reasoning"] == {"effort": "high", "summary": None}


@CHECKS("B138")
async def reasoning_comes_before_the_message(run: CaseRun) -> None:
    assert item_types(run.only) == ["reasoning", "message"]
    assert (reasoning_of(run.only.response), text_of(run.only.response)) == ("trivial", "Yes")


@CHECKS("B139")
async def effort_is_echoed_and_the_template_is_told_otherwise(run: CaseRun) -> None:
    assert run.only.response["reasoning"] == {"effort": "none", "summary": None}
    await run.again(reasoning=None)
    await run.again(chat_template_kwargs={"enable_thinking": False})
    with_effort, without, not_thinking = run.served.engine.prompts()
    assert with_effort == without
    assert not_thinking == f"{without}<think>\n\n</think>\n\n"


@CHECKS("B140")
async def reasoning_goes_with_the_turn_that_follows(run: CaseRun) -> None:
    assert text_of(run.only.response) == "Hello there."
    dialogue = (run.only.step.body or {})["input"]
    # The template shows reasoning on the turns after the newest user message only.
    await run.again(input=dialogue[:-1])
    prompts = run.served.engine.prompts()
    assert [prompt.count("<|im_start|>assistant") for prompt in prompts] == [2, 2]
    assert "<|im_start|>assistant\n<think>\nhmm\n</think>\n\na<|im_end|>" in prompts[1]


@CHECKS("B142")
async def empty_reasoning_is_taken(run: CaseRun) -> None:
    assert text_of(run.only.response) == "Hello there."
    assert run.served.engine.prompts()[0].count("<|im_start|>") == 4


# Bytes


@CHECKS("B145")
async def a_split_emoji_is_one_delta(run: CaseRun) -> None:
    assert deltas(run.only, "output_text") == ["\N{MOTOR SCOOTER}"]
    assert text_of(run.only.response) == "\N{MOTOR SCOOTER}"


@CHECKS("B146")
async def invalid_bytes_become_replacement_characters(run: CaseRun) -> None:
    assert text_of(run.only.response) == "\ufffd(\ufffd"
    assert run.only.response["status"] == "completed"


@CHECKS("B149")
async def a_body_in_another_encoding_is_refused(run: CaseRun) -> None:
    assert "UTF-8" in run.only.refused()
    assert text_of((await run.again(input="still there")).response) == "Hello there."


@CHECKS("B150")
async def bytes_that_are_no_text_at_all_are_an_answer(run: CaseRun) -> None:
    assert text_of(run.only.response) == "\ufffd\ufffd"
    assert run.only.response["status"] == "completed"


# Several at once

NUMBERED = [{"when": f"N{number} ", "emit": [f"N{number} "] * 10, "delay": 0.002} for number in range(8)]


@CHECKS("B185", rows=NUMBERED)
async def no_answer_holds_a_piece_of_another(run: CaseRun) -> None:
    assert len(run.exchanges) == 8
    together = [text_of(made.response) for made in run.exchanges]
    assert together == [f"N{number} " * 10 for number in range(8)]
    texts = [(made.step.body or {})["input"] for made in run.exchanges]
    alone = [text_of((await run.again(input=text, temperature=0)).response) for text in texts]
    assert alone == together


@CHECKS("B189")
async def a_stream_and_another_request_overlap(run: CaseRun) -> None:
    streamed, plain = run.exchanges
    assert streamed.types[-1] == "response.completed"
    assert text_of(streamed.response) == text_of(plain.response) == "Hello there."


@CHECKS("B190", rows=({"when": "bad", "emit": ["a"], "then": "raise"}, {"emit": ["fine"]}))
async def a_bad_row_fails_alone(run: CaseRun) -> None:
    assert [text_of(made.response) for made in run.exchanges] == ["fine", "fine"]
    good, bad = await run.together({"input": "good"}, {"input": "bad"})
    assert text_of(good.response) == "fine"
    assert bad.error(500)["code"] == "server_error"
    assert (await run.served.health())["engine"] == "running"


# Clients that leave


async def assert_generation_stopped(run: CaseRun) -> None:
    await run.served.engine.wait_drained()
    lags = run.served.engine.removal_lags()
    assert len(lags) == 1, "no row was taken out before its end"
    assert lags[0] <= 1
    before = await run.served.idle()
    assert 0 < before["sampled_tokens"] < 5000
    assert (await run.served.health())["sampled_tokens"] == before["sampled_tokens"]


@CHECKS("B105", rows=({"when": "a job", "emit": ["done"], "delay": 0.01}, ENDLESS))
async def a_dropped_stream_stops_its_generation_and_no_other(run: CaseRun) -> None:
    assert len(run.exchanges[0].events) == 3
    await assert_generation_stopped(run)
    # Each request has a connection of its own, which is closed when it is answered.
    job = job_of(run, await run.again(input="a job", stream=False, background=True))
    assert text_of(await job.end()) == "done"


@CHECKS("B109", rows=(ENDLESS,))
async def a_closed_connection_stops_generation(run: CaseRun) -> None:
    await assert_generation_stopped(run)


@CHECKS("B110", rows=(ENDLESS,))
async def a_closed_stream_stops_generation(run: CaseRun) -> None:
    assert run.only.types.count("response.output_text.delta") == 1
    await assert_generation_stopped(run)


@CHECKS("B113", rows=(ENDLESS,))
async def a_client_that_times_out_leaves_no_ghost(run: CaseRun) -> None:
    await assert_generation_stopped(run)
    health = await run.served.health()
    assert [health[key] for key in ("running", "waiting", "rows")] == [0, 0, 0]


# Transport


@CHECKS(
    "B171",
    # A fraction of the times, and a window in which the prompt fits.
    engine={"prefill_delay": 0.6},
    context_window=1_000_000,
    settings={"sse_ping_interval": 0.1},
)
async def silence_is_filled_with_events(run: CaseRun) -> None:
    assert Settings().sse_ping_interval == 15
    assert run.only.response["usage"]["input_tokens"] > 100_000
    assert run.only.types[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert run.only.events[2]["sequence_number"] == 2


@CHECKS("B173")
async def models_are_a_list_of_data(run: CaseRun) -> None:
    models = run.only.reply.json()
    assert models.keys() == {"object", "data"}
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["scripted"]
    assert all(model.keys() == {"id", "object", "created", "owned_by"} for model in models["data"])


@CHECKS("B175", settings=KEY)
async def a_preflight_needs_no_key(run: CaseRun) -> None:
    reply = run.only.reply
    assert reply.status_code == 204
    assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "POST" in reply.headers["access-control-allow-methods"]
    allowed = reply.headers["access-control-allow-headers"].replace(" ", "").split(",")
    assert set(allowed) >= {"authorization", "content-type", "x-stainless-os"}


@CHECKS("B177", settings=KEY)
async def a_wrong_key_is_told_in_the_envelope(run: CaseRun) -> None:
    error = run.only.error(401)
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "invalid_api_key",
        None,
    )
    assert "sesame" not in error["message"]


@CHECKS("B178")
async def a_stream_ends_with_done(run: CaseRun) -> None:
    # That DONE, and nothing else, follows the terminal event is checked wherever a stream is read.
    assert run.only.types[-1] == "response.completed"
    assert text_of(run.only.response) == "Hello there."
    async with run.served.connect() as client:
        step = run.only.step
        await client.send(step.method, step.path, body=step.content())
        assert (await client.reply()).body.endswith(b"\n\ndata: [DONE]\n\n")


@CHECKS("B180")
async def deep_nesting_is_refused(run: CaseRun) -> None:
    run.only.refused()
    assert text_of((await run.again(input="still there")).response) == "Hello there."
