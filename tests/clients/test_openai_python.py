"""The OpenAI SDK for Python against the server over a socket: async inside trio, sync in worker threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import openai
import pytest
import trio
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponseReasoningItem
from support.served import Served, serving_script
from support.wire import validate_response

from mlxcel_trio.testing.script import ScriptRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from openai.types.responses import Response

    Result = TypeVar("Result")

ROWS = (
    ScriptRow(when="capital", emit=("The capital of France", " is", " Paris.")),
    ScriptRow(when="think", emit=("<think>", "hm", "</think>", "\n\n", "Done")),
    ScriptRow(when="fail", emit=("a",), then="raise"),
    ScriptRow(when="endless", emit=("la ",), forever=True, delay=0.01),
    ScriptRow(when="silent", prefill_delay=3600),
    ScriptRow(emit=("hel", "lo")),
)

# The SDK stops reading at [DONE] and leaves its generators to the garbage collector, which trio warns of.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2):ResourceWarning")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving_script(*ROWS, parallel=2, max_queue_depth=0) as running:
        yield running


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncOpenAI]:
    async with async_client(served) as opened:
        yield opened


def async_client(served: Served, *, api_key: str = "not-needed", timeout: float = 60) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{served.url}/v1", api_key=api_key, timeout=timeout, max_retries=0)


async def in_thread(served: Served, use: Callable[[OpenAI], Result]) -> Result:
    """Call ``use`` with a sync client, in a thread of its own."""

    def call() -> Result:
        with OpenAI(base_url=f"{served.url}/v1", api_key="not-needed", max_retries=0) as client:
            return use(client)

    return await trio.to_thread.run_sync(call)


def checked(response: Response) -> Response:
    """``response`` as the SDK read it, which has to be what a strict reader of the API accepts."""
    read: dict[str, Any] = response.to_dict(mode="json", warnings=False)
    # The SDK reads times as floats.
    validate_response(read | {key: int(read[key]) for key in ("created_at", "completed_at") if read[key]})
    return response


# Answers


async def test_create(client: AsyncOpenAI) -> None:
    response = checked(await client.responses.create(model="local", input="capital?", temperature=0))
    assert response.output_text == "The capital of France is Paris."
    assert (response.model, response.status, response.temperature) == ("scripted", "completed", 0)
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + 4


async def test_create_as_a_stream(client: AsyncOpenAI) -> None:
    deltas, completed = [], None
    async for event in await client.responses.create(model="local", input="capital?", stream=True):
        if event.type == "response.output_text.delta":
            deltas.append(event.delta)
        elif event.type == "response.completed":
            completed = checked(event.response)
    assert deltas == ["The capital of France", " is", " Paris."]
    assert completed is not None
    assert completed.output_text == "".join(deltas)


async def test_stream(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="local", input="capital?") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    assert snapshots[-1] == final.output_text == "The capital of France is Paris."
    assert final.status == "completed"


async def test_the_same_from_threads(served: Served) -> None:
    def create(client: OpenAI) -> str:
        return checked(client.responses.create(model="local", input="capital?")).output_text

    def create_as_a_stream(client: OpenAI) -> str:
        events = client.responses.create(model="local", input="capital?", stream=True)
        return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    def stream(client: OpenAI) -> str:
        with client.responses.stream(model="local", input="capital?") as events:
            return events.until_done().get_final_response().output_text

    for use in (create, create_as_a_stream, stream):
        assert await in_thread(served, use) == "The capital of France is Paris."


async def test_a_first_request_as_a_newcomer_writes_it(served: Served) -> None:
    def reply(client: OpenAI) -> str:
        return client.responses.create(
            model="scripted", input="Reply with: hello", max_output_tokens=64
        ).output_text

    assert await in_thread(served, reply) == "hello"


async def test_threads_and_tasks_at_once() -> None:
    answers: list[str] = []
    rows = [
        ScriptRow(when=f"number {number}.", emit=tuple(str(number) * 5), delay=0.01) for number in range(6)
    ]
    async with (
        serving_script(*rows) as served,
        async_client(served) as client,
        trio.open_nursery() as nursery,
    ):

        async def ask(number: int) -> None:
            text = f"number {number}."
            if number % 2:
                response = await client.responses.create(model="local", input=text)
            else:
                response = await in_thread(
                    served, lambda blocking: blocking.responses.create(model="local", input=text)
                )
            answers.append(response.output_text)

        for number in range(6):
            nursery.start_soon(ask, number)
    assert sorted(answers) == [str(number) * 5 for number in range(6)]


async def test_reasoning_and_what_is_echoed(client: AsyncOpenAI) -> None:
    response = await client.responses.create(
        model="scripted",
        input="think",
        instructions="Be brief.",
        metadata={"trace": "t-1"},
        reasoning={"effort": "low"},
        max_output_tokens=100,
        top_p=0.5,
        user="someone",
        prompt_cache_key="key",
        extra_body={"top_k": 5, "seed": 7, "stop": ["never"]},
    )
    reasoning, message = checked(response).output
    assert isinstance(reasoning, ResponseReasoningItem)
    assert reasoning.content is not None
    assert [part.text for part in reasoning.content] == ["hm"]
    assert message.type == "message"
    assert response.output_text == "Done"
    assert (response.instructions, response.metadata) == ("Be brief.", {"trace": "t-1"})
    assert (response.max_output_tokens, response.top_p, response.user) == (100, 0.5, "someone")
    assert response.reasoning is not None
    assert response.reasoning.effort == "low"


async def test_output_is_taken_back_as_input(served: Served, client: AsyncOpenAI) -> None:
    question: Any = {"role": "user", "content": "think"}
    first = await client.responses.create(model="local", input=[question])
    again: Any = [question, *first.output, {"role": "user", "content": "capital?"}]
    second = await client.responses.create(model="local", input=again)
    assert second.output_text == "The capital of France is Paris."
    assert "<|im_start|>assistant\nDone<|im_end|>\n<|im_start|>user\ncapital?" in served.engine.prompts()[1]


async def test_a_length_stop(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="local", input="endless", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "la la "


async def test_headers(client: AsyncOpenAI) -> None:
    raw = await client.responses.with_raw_response.create(model="local", input="hi")
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"].startswith("req_")
    response = raw.parse()
    assert (response.output_text, response._request_id) == ("hello", raw.headers["x-request-id"])


async def test_models(client: AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [(model.id, model.object) for model in models] == [("scripted", "model")]
    for name in ("scripted", "local"):
        assert (await client.models.retrieve(name)).id == name


# Errors


async def test_a_refusal_names_the_field(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="local", input="hi", temperature=3)
    assert (caught.value.param, caught.value.code, caught.value.type) == (
        "temperature",
        None,
        "invalid_request_error",
    )
    assert caught.value.request_id is not None
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="gpt-5", input="hi")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


async def test_a_refusal_of_a_stream_comes_before_it(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="local", input=[], stream=True)
    assert caught.value.param == "input"
    with pytest.raises(openai.BadRequestError):
        async with client.responses.stream(model="local", input="knot " * 9000):
            raise AssertionError
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="local", input="hi", tools=[{"type": "web_search"}], stream=True)
    assert caught.value.param == "tools[0].type"


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("gpt-5")
    assert caught.value.code == "model_not_found"


async def test_a_key_is_needed_where_keys_are_configured() -> None:
    async with serving_script(*ROWS, api_keys=("sesame",)) as served:
        async with async_client(served, api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.responses.create(model="local", input="hi")
            assert caught.value.code == "invalid_api_key"
        async with async_client(served, api_key="sesame") as client:
            assert (await client.responses.create(model="local", input="hi")).output_text == "hello"


async def test_a_failure_is_an_internal_server_error(served: Served, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await client.responses.create(model="local", input="fail")
    assert (caught.value.status_code, caught.value.code) == (500, "server_error")
    assert len(served.engine.backend.prompts) == 1, "without retries"


async def test_a_failure_in_a_stream_is_its_last_event(client: AsyncOpenAI) -> None:
    events = [
        event async for event in await client.responses.create(model="local", input="fail", stream=True)
    ]
    failed = events[-1]
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert failed.response.error.code == "server_error"
    assert failed.response.output_text == "a"


async def test_an_overload_says_when_to_try_again(served: Served, client: AsyncOpenAI) -> None:
    async with served.open_stream(input="endless") as one, served.open_stream(input="endless") as two:
        for stream in (one, two):
            await stream.next("response.output_text.delta")
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="local", input="hi")
    assert (caught.value.status_code, caught.value.code) == (503, "server_overloaded")
    assert int(caught.value.response.headers["retry-after"]) >= 1


# Clients that leave


async def test_a_timeout_frees_the_slot(served: Served) -> None:
    def wait_for_json(client: OpenAI) -> object:
        return client.with_options(timeout=0.3).responses.create(model="local", input="endless")

    def wait_for_events(client: OpenAI) -> object:
        hasty = client.with_options(timeout=0.3)
        return list(hasty.responses.create(model="local", input="silent", stream=True))

    for wait in (wait_for_json, wait_for_events):
        with pytest.raises(openai.APITimeoutError):
            await in_thread(served, wait)
        await served.idle()


async def test_an_async_timeout_frees_the_slot(served: Served) -> None:
    async with async_client(served, timeout=0.3) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.responses.create(model="local", input="endless")
    await served.idle()


async def test_a_cancel_scope_frees_the_slot(served: Served, client: AsyncOpenAI) -> None:
    with trio.move_on_after(0.3):
        await client.responses.create(model="local", input="endless")
    await served.idle()
    assert max(served.engine.removal_lags()) <= 1


async def test_closing_a_stream_early_frees_the_slot(served: Served, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="local", input="endless", stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    await served.idle()
    async with client.responses.stream(model="local", input="endless") as events:
        async for event in events:
            if event.type == "response.output_text.delta":
                break
    await served.idle()
    assert max(served.engine.removal_lags()) <= 1


async def test_closing_a_stream_early_in_a_thread(served: Served) -> None:
    def read_a_little(client: OpenAI) -> int:
        with client.responses.create(model="local", input="endless", stream=True) as stream:
            return next(number for number, event in enumerate(stream) if event.type.endswith(".delta"))

    assert await in_thread(served, read_a_little) == 4
    await served.idle()
