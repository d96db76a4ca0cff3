"""The service room with background responses. The test is again the client, the engine and the time."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio
import trio.testing
from support.service_bench import LIMITS, WALL_TIME, ServiceBench, checked, create_request, read

from mlxcel_trio.core.jobs import ActiveJobs
from mlxcel_trio.errors import InvalidRequestError
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.service.jobs import Jobs
from mlxcel_trio.service.responses import RENDER_THREADS, Responses
from mlxcel_trio.testing.fake_engine import FakeEngine, FakeTokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.published import Json

    from mlxcel_trio.core.store import StoreLimits
    from mlxcel_trio.engine.tokenizer import RenderedPrompt
    from mlxcel_trio.protocol.requests import CreateResponse
    from mlxcel_trio.service.pipeline import ResponseRun
    from mlxcel_trio.testing.fake_engine import FakeSequence

EPHEMERAL_TTL = 60.0
"""Seconds, as on every bench."""

UNRENDERABLE = "no template takes this"


class HeldTokenizer(FakeTokenizer):
    """Renders not before the test lets it, and not everything."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: dict[str, threading.Event] = {}

    def hold(self, text: str) -> threading.Event:
        """Prompts that end with ``text`` are not rendered before the event is set."""
        return self._gates.setdefault(text, threading.Event())

    def render(self, *args: Any, **kwargs: Any) -> RenderedPrompt:
        text = args[0][-1].content
        if text in self._gates:
            assert self._gates[text].wait(timeout=10), "the test does not let go of it"
        if text.endswith(UNRENDERABLE):
            raise InvalidRequestError("The chat template refuses this dialogue.", param="input")
        return super().render(*args, **kwargs)


class JobBench(ServiceBench):
    """A server's use cases, whose jobs run while :meth:`open` is."""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        *,
        slots: int = 2,
        depth: int = 8,
        responses: StoreLimits = LIMITS,
        conversations: StoreLimits = LIMITS,
        max_jobs: int = 64,
        job_bytes: int | None = None,
    ) -> None:
        """``job_bytes``: the budget of unfinished jobs, where it is not that of stored responses."""
        super().__init__(engine, slots=slots, depth=depth, responses=responses, conversations=conversations)
        self.tokenizer = self.engine.fake_tokenizer = HeldTokenizer()
        self.jobs = Jobs()
        self.active = ActiveJobs(max_jobs, responses.max_bytes if job_bytes is None else job_bytes)
        self.responses = Responses(
            self.engine,
            self.responses._model,
            self.slots,
            self.stored,
            self.conversations,
            self.jobs,
            active_jobs=self.active,
            new_id=self.responses._new_id,
            wall_clock=lambda: WALL_TIME,
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Let jobs run; when the block is left nothing may be held by anything."""
        async with self.jobs.open():
            yield
        self.assert_idle()

    def assert_idle(self) -> None:
        """Nobody holds a queue place, slot, row or job place, waits for a turn, or is found while it runs."""
        super().assert_idle()
        assert (len(self.active), self.active.retained_bytes) == (0, 0)
        assert not self.responses._turns._turns
        assert not self.jobs._entering
        assert not self.stored._live
        assert not self.stored._live_and_kept

    async def create(self, owner: str | None = None, **fields: Any) -> Json:
        """What the create request of a job answers."""
        run = await self.prepare_job(owner, **fields)
        return checked(encode(run.detach()))

    async def prepare_job(self, owner: str | None = None, **fields: Any) -> ResponseRun:
        """A job that has not begun."""
        return await self.responses.prepare(job_request(**fields), owner)

    async def start(self, *chunks: str, owner: str | None = None, **fields: Any) -> tuple[str, FakeSequence]:
        """A job that the engine has begun with, and said ``chunks`` of."""
        created = await self.create(owner, **fields)
        sequence = await self.engine.next_sequence()
        sequence.prefill()
        sequence.say(*chunks)
        await self.settled()
        return created["id"], sequence

    def poll(self, response_id: str, owner: str | None = None) -> Json:
        """The job as its client sees it, after every check."""
        return checked(self.stored.retrieve(owner, response_id))

    def delete(self, response_id: str, owner: str | None = None) -> Json:
        """The answer to a delete."""
        return read(encode(self.stored.delete(owner, response_id)))

    def statuses(self, *response_ids: str) -> list[str]:
        """How the jobs stand."""
        return [self.poll(response_id)["status"] for response_id in response_ids]

    async def settled(self) -> None:
        """Wait until nothing goes on any more, in worker threads neither."""
        await trio.testing.wait_all_tasks_blocked()
        while self.responses._render_limiter.borrowed_tokens:
            await self._rendered()
            await trio.testing.wait_all_tasks_blocked()

    async def _rendered(self) -> None:
        """Wait until no thread renders, by having all of their places for a moment."""
        limiter, borrowers = self.responses._render_limiter, list[object]()
        try:
            while len(borrowers) < RENDER_THREADS:
                borrower = object()
                await limiter.acquire_on_behalf_of(borrower)
                borrowers.append(borrower)
        finally:
            for borrower in borrowers:
                limiter.release_on_behalf_of(borrower)


def job_request(**fields: Any) -> CreateResponse:
    """A create request of a job, as it is decoded."""
    return create_request(**{"background": True, "stream": False} | fields)
