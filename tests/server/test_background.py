"""Background responses over HTTP on a scripted engine: their way from create to the end."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs
from support.gates import held_rendering, held_steps
from support.jobs import HAIKU, ROWS, Job, create_job, no_job_left
from support.served import Served, body_of, checked_error, checked_response, serving_script, text_of
from support.wire import validate_response

from mlxcel_trio.service.jobs import Jobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.published import Json

    from mlxcel_trio.service.pipeline import ResponseRun

EXAMPLE_BODY = '{"model":"local","input":"Write a haiku about rain.","background":true}'
CURL = shutil.which("curl")


# The example


async def by_socket(served: Served) -> tuple[Json, Callable[[str], Awaitable[Json]]]:
    """Create with the bytes that curl sends; the function gets a response with such bytes too."""
    host = served.url.removeprefix("http://")

    async def ask(head: str, body: str = "") -> Json:
        request = f"{head} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
        if body:
            request += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        async with served.connect() as client:
            await client.stream.send_all(f"{request}\r\n{body}".encode())
            return await read_answer(client.stream)

    async def get(path: str) -> Json:
        return await ask(f"GET {path}")

    return await ask("POST /v1/responses", EXAMPLE_BODY), get


async def read_answer(stream: trio.SocketStream) -> Json:
    """The JSON body of an answer with a content-length."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += await stream.receive_some()
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert (status_line.split()[:2], headers["content-type"]) == (["http/1.1", "200"], "application/json")
    while len(body) < int(headers["content-length"]):
        body += await stream.receive_some()
    answer: Json = json.loads(body)
    return answer


async def by_curl(served: Served) -> tuple[Json, Callable[[str], Awaitable[Json]]]:
    """Create with curl; the function gets a response with curl."""
    assert CURL is not None
    command = [CURL, "-s"]

    async def run(*arguments: str) -> Json:
        done = await trio.run_process([*command, *arguments], capture_stdout=True, stderr=subprocess.DEVNULL)
        answer: Json = json.loads(done.stdout)
        return answer

    async def get(path: str) -> Json:
        return await run(f"{served.url}{path}")

    header = "Content-Type: application/json"
    return await run(f"{served.url}/v1/responses", "-H", header, "-d", EXAMPLE_BODY), get


@pytest.mark.parametrize("ask", [by_socket, by_curl] if CURL else [by_socket])
async def test_the_example_as_it_is_written(
    ask: Callable[[Served], Awaitable[tuple[Json, Callable[[str], Awaitable[Json]]]]],
) -> None:
    async with serving_script(*ROWS) as served:
        created, get = await ask(served)
        validate_response(created)
        assert created["id"].startswith("resp_")
        assert (created["status"], created["background"], created["output"]) == ("queued", True, [])
        response = created
        while response["status"] in ("queued", "in_progress"):
            response = await get(f"/v1/responses/{created['id']}")
            validate_response(response)
            assert response["background"] is True
        assert (response["status"], text_of(response)) == ("completed", "".join(HAIKU))


# From create to the end


async def test_through_every_status(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_script(*ROWS) as served:
        with held_steps(served, monkeypatch) as gate:
            job = await create_job(served, input="haiku")
            await served.until(rows=1, jobs=1)
            assert (await job.poll())["status"] == "queued", "the engine has it but has not begun"
            gate.let()
            await job.until("in_progress")
            gate.let(3)
            await served.until(sampled_tokens=3)
            assert (await job.poll())["status"] == "in_progress"
        response = await job.end()
        assert job.statuses == ["queued", "in_progress", "completed"]
        await no_job_left(served)
        assert await job.poll() == response
    assert text_of(response) == "".join(HAIKU)
    assert response["usage"]["output_tokens"] == len(HAIKU) + 1


async def test_the_same_answer_as_in_the_foreground() -> None:
    """But for ids, times and the key that tells them apart; its foreground sibling has no such key."""
    fields = {"input": "haiku", "metadata": {"k": "v"}, "temperature": 0.5, "user": "u", "top_logprobs": 1}
    async with serving_script(*ROWS) as served:
        for more in ({}, {"max_output_tokens": 2}, {"stop": ["the"]}, {"store": False}):
            background = await (await create_job(served, **fields, **more)).end()
            foreground = await served.create(**fields, **more)
            assert "background" not in foreground
            if more != {"store": False}:
                kept = checked_response(await served.client.get(f"/v1/responses/{foreground['id']}"))
                assert kept == foreground
            assert without_ids(background) == without_ids(foreground)


def without_ids(response: Json) -> Json:
    """What two responses to one request have in common."""
    own = {"id", "created_at", "completed_at", "background"}
    output = [{key: value for key, value in item.items() if key != "id"} for item in response["output"]]
    return {key: value for key, value in response.items() if key not in own} | {"output": output}


async def test_a_length_stop() -> None:
    async with serving_script(*ROWS) as served:
        response = await (await create_job(served, input="haiku", max_output_tokens=2)).end()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert text_of(response) == "Soft rain"
    assert response["usage"]["output_tokens"] == 2


async def test_create_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a slot, not for an engine in the middle of a step, not for rendering."""
    async with serving_script(*ROWS, parallel=1) as served:
        async with served.open_stream(input="endless") as holder:
            await holder.next("response.output_text.delta")
            waiting = [await create_job(served, input="haiku") for _ in range(3)]
            await served.until(running=1, waiting=3, jobs=3)
            assert {(await job.poll())["status"] for job in waiting} == {"queued"}
        with held_rendering(served, monkeypatch), held_steps(served, monkeypatch):
            unrendered = [await create_job(served, input="haiku") for _ in range(3)]
            assert {(await job.poll())["status"] for job in unrendered} == {"queued"}
        for job in (*waiting, *unrendered):
            assert text_of(await job.end()) == "".join(HAIKU)


async def test_jobs_are_begun_in_order_with_a_stream_among_them() -> None:
    numbers = [f"number {number}." for number in range(12)]
    async with serving_script(*ROWS, parallel=1) as served:
        async with served.open_stream(input="endless") as holder:
            await holder.next("response.output_text.delta")
            jobs = [await create_job(served, input=number) for number in numbers[:6]]
            async with served.open_stream(input=numbers[6]) as between:
                await between.next("response.in_progress")
                jobs += [await create_job(served, input=number) for number in numbers[7:]]
                await holder.leave()
                assert text_of(await between.rest()) == "ok"
        for job in jobs:
            assert text_of(await job.end()) == "ok"
        prompts = served.engine.prompts()[1:]
    assert [number for prompt in prompts for number in numbers if number in prompt] == numbers


async def test_jobs_created_at_once_are_begun_in_order_of_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted: list[str] = []
    start = Jobs.start

    def note_and_start(jobs: Jobs, run: ResponseRun, enter_queue: Callable[[], None]) -> None:
        admitted.append(run.response_id)
        start(jobs, run, enter_queue)

    monkeypatch.setattr(Jobs, "start", note_and_start)
    numbers = [f"number {number}." for number in range(40)]
    asked: dict[str, str] = {}

    async def create(text: str) -> None:
        asked[(await create_job(served, input=text)).id] = text

    async with serving_script(*ROWS, parallel=2) as served:
        async with trio.open_nursery() as nursery:
            for number in numbers:
                nursery.start_soon(create, number)
        await no_job_left(served)
        prompts = served.engine.prompts()
    begun = [number for prompt in prompts for number in numbers if number in prompt]
    assert begun == [asked[response_id] for response_id in admitted]
    assert sorted(begun) == sorted(numbers)


async def test_a_prompt_that_does_not_fit_fails_the_job_and_not_the_request() -> None:
    async with serving_script(*ROWS, context_window=64) as served:
        failed = await (await create_job(served, input="knot " * 64)).end()
        fits = await (await create_job(served, input="haiku")).end()
        reply = await served.refusal(input="knot " * 64)
        await no_job_left(served)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_prompt")
    assert failed["error"]["message"] == checked_error(reply)["message"]
    assert (failed["output"], failed["usage"]["total_tokens"]) == ([], 0)
    assert fits["status"] == "completed"


async def test_paths_without_v1() -> None:
    async with serving_script(*ROWS) as served:
        client = served.client
        for text, status in (("haiku", "completed"), ("endless", "cancelled")):
            job = Job(
                served, await client.post("/responses", json=body_of({"input": text, "background": True}))
            )
            path = f"/responses/{job.id}"
            assert checked_response(await client.get(path))["background"] is True
            if status == "cancelled":
                assert checked_response(await client.post(f"{path}/cancel"))["status"] == status
            response = await job.end()
            assert (response["status"], checked_response(await client.get(path))) == (status, response)
            assert (await client.delete(path)).json()["deleted"] is True
            await job.assert_unknown()


async def test_what_it_was_asked_is_listed_all_the_time() -> None:
    async with serving_script(*ROWS) as served:
        job = await create_job(served, input="endless")

        async def listed() -> Json:
            page: Json = (await served.client.get(f"{job.path}/input_items")).json()
            return page

        pages = [await listed()]
        await job.until("in_progress")
        pages.append(await listed())
        await job.cancel()
        pages.append(await listed())
    assert pages[0] == pages[1] == pages[2]
    assert [item["content"][0]["text"] for item in pages[0]["data"]] == ["endless"]


# Log


async def test_one_line_for_each_job() -> None:
    endings: dict[str, Json] = {
        "completed": {"input": "haiku"},
        "not stored": {"input": "haiku", "store": False},
        "incomplete": {"input": "haiku", "max_output_tokens": 2},
        "failed": {"input": "bad"},
        "too long": {"input": "knot " * 300},
    }
    ends: dict[str, Json] = {}
    with capture_logs() as logs:
        async with serving_script(*ROWS, context_window=256) as served:
            for name, fields in endings.items():
                ends[name] = await (await create_job(served, **fields)).end()
            for name, status in (("prefill", "queued"), ("endless", "in_progress")):
                job = await create_job(served, input=name)
                await served.until(rows=1)
                await job.until(status)
                ends[name] = await job.cancel()
                await served.until(rows=0)
            await served.create(input="haiku")
    lines = {line["response_id"]: line for line in logs if line["event"] == "job"}
    assert len([line for line in logs if line["event"] == "job"]) == len(lines) == len(ends)
    reasons = {
        "incomplete": "max_output_tokens",
        "failed": "server_error",
        "too long": "invalid_prompt",
    }
    for name, response in ends.items():
        line = lines[response["id"]]
        assert line.keys() == {
            "event",
            "log_level",
            "response_id",
            "status",
            "queued_seconds",
            "prefill_tokens",
            "decode_tokens",
            "reason",
        }
        assert (line["log_level"], line["status"]) == ("info", response["status"])
        assert line["reason"] == reasons.get(name)
        assert line["queued_seconds"] >= 0
        if name in ("completed", "not stored", "incomplete", "failed"):
            usage = response["usage"]
            assert (line["prefill_tokens"], line["decode_tokens"]) == (
                usage["input_tokens"],
                usage["output_tokens"],
            )
    never_begun = [lines[ends[name]["id"]] for name in ("too long", "prefill")]
    assert [(line["prefill_tokens"], line["decode_tokens"]) for line in never_begun] == [(0, 0)] * 2
    endless = lines[ends["endless"]["id"]]
    assert endless["prefill_tokens"] > 0, "what was done is counted, though the client is told nothing of it"
