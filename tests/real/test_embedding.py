"""The engine and the server inside somebody else's nursery."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import trio
from support.served_model import TINY_MODEL

import mlxcel_trio
from mlxcel_trio import ChatMessage, SamplingParameters, Settings, open_engine, serve
from mlxcel_trio.errors import InvalidRequestError, ModelNotFoundError

PATIENCE_SECONDS = 60
GREEDY = SamplingParameters(temperature=0)
ROOT = Path(__file__).parents[2]


def example(marker: str) -> str:
    """The README's example below a marker, with the tiny model in place of the demo model."""
    text = (ROOT / "README.md").read_text()
    match = re.search(rf"<!-- {marker} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert match is not None
    code = match[1].replace("open_engine()", f"open_engine({str(TINY_MODEL)!r})")
    return code.replace("Settings(port=0)", f"Settings(port=0, model={str(TINY_MODEL)!r})")


@pytest.mark.parametrize(
    ("marker", "output"),
    [
        ("embed", "The capital of France is Paris."),
        ("embed-server", r".* model_loaded .*\nhttp://127\.0\.0\.1:\d+\n"),
    ],
)
def test_the_readmes_examples(tmp_path: Path, marker: str, output: str) -> None:
    script = tmp_path / "example.py"
    script.write_text(example(marker))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert re.fullmatch(output, done.stdout)


async def test_two_sequences_at_once_and_nothing_left_behind() -> None:
    threads = threading.active_count()
    answers: dict[str, str] = {}
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_engine(str(TINY_MODEL)) as engine:

            async def ask(question: str) -> None:
                prompt = engine.tokenizer.render([ChatMessage("user", question)])
                with engine.generate(prompt.tokens, sampling=GREEDY) as sequence:
                    answers[question] = await sequence.text()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "Count to 3")
                nursery.start_soon(ask, "Reply with: hello")
            assert engine.statistics().rows == 0
    assert answers == {"Count to 3": "1, 2, 3", "Reply with: hello": "hello"}
    assert engine.statistics().state == "stopped"
    # trio keeps idle worker threads for a while; the engine's own is joined.
    assert threading.active_count() <= threads + 3


async def test_a_cancel_in_mid_sequence_unwinds() -> None:
    with trio.fail_after(PATIENCE_SECONDS), trio.CancelScope() as scope:
        async with open_engine(str(TINY_MODEL)) as engine:
            prompt = engine.tokenizer.render([ChatMessage("user", "Tell me a story")])
            with engine.generate(prompt.tokens, sampling=GREEDY) as sequence:
                async for event in sequence:
                    if sequence.text_of(event):
                        scope.cancel()
    assert scope.cancelled_caught
    assert engine.statistics().state == "stopped"
    assert engine.statistics().rows == 0


async def test_an_error_of_the_embedder_comes_out() -> None:
    with trio.fail_after(PATIENCE_SECONDS), pytest.RaisesGroup(ZeroDivisionError):
        async with open_engine(str(TINY_MODEL)):
            raise ZeroDivisionError


async def test_prompts_that_do_not_fit() -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_engine(str(TINY_MODEL), context_window=8) as engine:
            for prompt in ([], [1] * 8):
                with pytest.raises(InvalidRequestError, match="1 to 7 tokens"), engine.generate(prompt):
                    pass
            with engine.generate([1] * 7, sampling=GREEDY) as sequence:
                assert len([event async for event in sequence if sequence.text_of(event) is not None]) >= 1


async def test_a_model_that_is_not_there() -> None:
    with trio.fail_after(PATIENCE_SECONDS), pytest.raises(ModelNotFoundError):
        async with open_engine("no such model"):
            pass


async def test_two_servers_in_one_process() -> None:
    settings = Settings(port=0, model=str(TINY_MODEL))
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            urls: list[str] = []

            async def start() -> None:
                urls.append(await nursery.start(serve, settings))

            async with trio.open_nursery() as starting:
                starting.start_soon(start)
                starting.start_soon(start)
            assert len(set(urls)) == 2
            async with httpx.AsyncClient() as client:
                for url in urls:
                    body = {"model": "tiny_model", "input": "Count to 3", "temperature": 0}
                    reply = await client.post(f"{url}/v1/responses", json=body)
                    assert reply.json()["output"][0]["content"][0]["text"] == "1, 2, 3"
            nursery.cancel_scope.cancel()


def test_the_public_names_are_sorted_and_there() -> None:
    assert sorted(mlxcel_trio.__all__) == mlxcel_trio.__all__
    for name in mlxcel_trio.__all__:
        assert getattr(mlxcel_trio, name).__module__.startswith("mlxcel_trio.")
    with pytest.raises(AttributeError):
        _ = mlxcel_trio.no_such_name
