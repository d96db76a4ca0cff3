"""Engine, server and run are cancelled at every checkpoint in turn, and nothing of them is left."""

from __future__ import annotations

import gc
import itertools
import threading
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import h11
import pytest
import trio
from support.checkpoints import cancelled_at
from support.http_server import CREATE, STREAM, Client
from support.resources import resources
from support.served_model import TINY_MODEL
from support.service_bench import ServiceBench, play

from mlxcel_trio.core.messages import ChatMessage
from mlxcel_trio.core.sampling import SamplingParameters
from mlxcel_trio.engine.api import Engine
from mlxcel_trio.engine.bridge import STOP_WARNING_SECONDS, EngineBridge
from mlxcel_trio.engine.mlx_engine import open_engine
from mlxcel_trio.errors import NotFoundError
from mlxcel_trio.http.connection import Connection
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.server import Model, serve_engine
from mlxcel_trio.service.admission import Slots
from mlxcel_trio.service.pipeline import ResponseRun
from mlxcel_trio.settings import Settings
from mlxcel_trio.testing.fake_engine import FakeEngine
from mlxcel_trio.testing.script import Script, ScriptRow
from mlxcel_trio.testing.scripted_backend import ScriptedBackend
from mlxcel_trio.testing.scripted_tokenizer import ScriptedTokenizer, load_scripted_tokenizer

if TYPE_CHECKING:
    from mlxcel_trio.core.admission import Admission
    from mlxcel_trio.engine.api import Tokenizer
    from mlxcel_trio.engine.backend import LoadedModel

LIMIT_SECONDS = 120
SCRIPT = Script([ScriptRow(emit=("Hel", "lo"))])


@cache
def tokenizer() -> ScriptedTokenizer:
    """Loading one takes longer than all the rest of an attempt."""
    return load_scripted_tokenizer(SCRIPT)


class CountingBackend(ScriptedBackend):
    """Counts how often it was loaded and closed."""

    loads = 0
    closes = 0

    def load(self) -> LoadedModel:
        self.loads += 1
        return super().load()

    def close(self) -> None:
        self.closes += 1
        super().close()


class Attempt:
    """A scripted engine for one scenario to be cancelled, and a look at what there was before."""

    def __init__(self) -> None:
        self._backend = CountingBackend(SCRIPT, tokenizer(), context_window=1024)
        self.engine = Engine(self._load)
        self._tasks = tasks()
        self._descriptors = resources().descriptors
        self._started_at = trio.current_time()

    def _load(self) -> tuple[Tokenizer, CountingBackend]:
        return tokenizer(), self._backend

    def assert_gone(self) -> None:
        """The engine's thread has ended and freed what it loaded; no task, row or descriptor is left.

        Nobody waited for a thread that was not there.
        """
        assert trio.current_time() - self._started_at < STOP_WARNING_SECONDS
        assert tasks() == self._tasks
        statistics = self.engine.statistics()
        assert statistics.rows == 0
        assert statistics.state == "stopped" or not self._backend.loads  # the task may never have begun
        assert self._backend.closes == self._backend.loads <= 1
        assert not [thread for thread in threading.enumerate() if "_on_engine" in thread.name]
        assert resources().descriptors == self._descriptors


def tasks() -> int:
    """How many tasks live in this trio run."""
    return trio.lowlevel.current_statistics().tasks_living


def assert_forgotten(*kinds: type) -> None:
    """Nothing refers to an object of these types any more."""
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, kinds)]


async def cancel_open_engine(step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """``open_engine`` and a sequence to its end, cancelled at ``step``."""
    attempt = Attempt()
    prompt = tokenizer().render([ChatMessage("user", "hi")]).tokens

    async def generate() -> None:
        async with open_engine(str(TINY_MODEL)) as engine:
            with engine.generate(prompt) as sequence:
                assert await sequence.text() == "Hello"

    with monkeypatch.context() as patched:
        patched.setattr("mlxcel_trio.engine.mlx_engine.mlx_engine", lambda *_, **__: attempt.engine)
        cancelled = await cancelled_at(step, generate)
    attempt.assert_gone()
    return cancelled


async def test_an_open_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with trio.fail_after(LIMIT_SECONDS):
        for step in itertools.count():
            if not await cancel_open_engine(step, monkeypatch):
                break
    assert step > 10
    assert_forgotten(EngineBridge, CountingBackend)


async def generate_for_real() -> None:
    """A loaded model and a sequence of it, to the end."""
    async with open_engine(str(TINY_MODEL)) as engine:
        prompt = engine.tokenizer.render([ChatMessage("user", "Count to 3")]).tokens
        with engine.generate(prompt, sampling=SamplingParameters(temperature=0)) as sequence:
            assert await sequence.text() == "1, 2, 3"


@pytest.mark.long
async def test_a_model_and_its_memory() -> None:
    with trio.fail_after(LIMIT_SECONDS):
        await generate_for_real()
        import mlx.core as mx  # by now it has been imported as the engine wants it

        gc.collect()
        before = (mx.get_active_memory(), tasks(), resources().descriptors)
        for step in itertools.count():
            cancelled = await cancelled_at(step, generate_for_real)
            gc.collect()
            assert (mx.get_active_memory(), tasks(), resources().descriptors) == before
            if not cancelled:
                break
    assert step > 10


class ServedAttempt(Attempt):
    """A server with one slot, a JSON request and a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bytes] = []
        self._shutdown = trio.Event()
        self._port: int | None = None
        self._serving_or_gone = trio.Event()

    async def serve(self) -> None:
        """Serve until both requests are answered."""
        try:
            async with trio.open_nursery() as nursery:
                url = await nursery.start(self._serve)
                self._port = int(url.rpartition(":")[2])
                self._serving_or_gone.set()
        finally:
            self._serving_or_gone.set()

    async def _serve(self, *, task_status: trio.TaskStatus[str]) -> None:
        await serve_engine(
            Settings(port=0, parallel=1),
            self.engine,
            Model(("tiny",)),
            shutdown=self._shutdown,
            task_status=task_status,
        )

    async def ask(self) -> None:
        """Make the requests; ends by itself, whatever the server does."""
        await self._serving_or_gone.wait()
        async with trio.open_nursery() as nursery:
            for body in (CREATE, STREAM):
                nursery.start_soon(self._ask, body)
        self._shutdown.set()

    async def _ask(self, body: bytes) -> None:
        if self._port is None:
            return
        with suppress(OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
            async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
                client = Client(stream)
                await client.send("POST", "/v1/responses", body=body)
                self.answers.append((await client.reply()).body)


async def cancel_server(step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A server with a JSON request and a stream, cancelled at ``step``. The clients are not."""
    all_slots: list[Slots] = []

    def remember_slots(admission: Admission) -> Slots:
        all_slots.append(Slots(admission))
        return all_slots[-1]

    attempt = ServedAttempt()
    with monkeypatch.context() as patched:
        patched.setattr("mlxcel_trio.server.Slots", remember_slots)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt.ask)
            cancelled = await cancelled_at(step, attempt.serve)
    attempt.assert_gone()
    assert [(slots.running, slots.waiting) for slots in all_slots] in ([], [(0, 0)])
    if not cancelled:
        json_answer, stream = sorted(attempt.answers, key=len)
        assert b'"Hello"' in json_answer
        assert stream.endswith(b"data: [DONE]\n\n")
    return cancelled


async def test_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with trio.fail_after(LIMIT_SECONDS):
        for step in itertools.count():
            if not await cancel_server(step, monkeypatch):
                break
    assert step > 50
    assert_forgotten(EngineBridge, CountingBackend, Connection, ResponseRun, trio.SocketStream)


async def cancel_runs(step: int) -> bool:
    """A run for a stream and one for JSON on a fake engine with one slot, cancelled at ``step``."""
    bench = ServiceBench(slots=1, depth=1)
    runs = [await bench.prepare(stream=stream) for stream in (True, False)]
    before = tasks()

    async def read() -> None:
        async with runs[0].open(ping_interval=3600) as events:
            assert [event async for event in events]

    async def answer() -> None:
        for _ in range(2):
            play(await bench.engine.next_sequence(), "Hel", "lo")

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(runs[1].run)
            nursery.start_soon(answer)

    cancelled = await cancelled_at(step, scenario)
    assert tasks() == before
    for run in runs:
        assert_stored_as_it_ended(bench, run)
    bench.assert_idle()
    assert cancelled or len(bench.stored) == 2
    return cancelled


def assert_stored_as_it_ended(bench: ServiceBench, run: ResponseRun) -> None:
    """A response that has ended is stored, whoever has heard of it; one that was given up left nothing."""
    if run.response.status == "completed":
        assert bench.stored.retrieve(None, run.response_id) == encode(run.response)
        return
    with pytest.raises(NotFoundError):
        bench.stored.cancel(None, run.response_id)


async def test_runs() -> None:
    with trio.fail_after(LIMIT_SECONDS):
        for step in itertools.count():
            if not await cancel_runs(step):
                break
    assert step > 20
    assert_forgotten(ResponseRun, FakeEngine)
