"""A bench of jobs and its model, side by side: each operation is done to both, and everything is compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
import trio.testing
from support.job_bench import UNRENDERABLE, JobBench
from support.job_model import UNFINISHED, Asked, Bounds, JobModel
from support.job_operations import (
    MOST,
    Burst,
    Cancel,
    Create,
    Delete,
    Die,
    Generate,
    Leave,
    Operation,
    Poll,
    Wait,
)
from support.service_bench import checked, collect, final, limits, texts

from mlxcel_trio.errors import (
    ApiError,
    EngineFailureError,
    EngineUnavailableError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
    ServerOverloadedError,
)
from mlxcel_trio.protocol.codec import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.published import Json

    from mlxcel_trio.service.pipeline import ResponseRun
    from mlxcel_trio.testing.fake_engine import FakeSequence

UNKNOWN = "resp_unknown"
MAX_HISTORY = 4
"""Turns; with longer dialogues one response could be more than a small store takes."""


class Machine:
    """A bench and its model, side by side."""

    def __init__(self, bounds: Bounds, clock: trio.testing.MockClock) -> None:
        self.bounds = bounds
        self.model = JobModel(bounds)
        self.bench = JobBench(
            slots=bounds.slots,
            depth=bounds.depth,
            max_jobs=bounds.max_jobs,
            responses=limits(
                max_entries=bounds.max_entries, max_bytes=bounds.max_bytes, ttl_seconds=bounds.ttl_seconds
            ),
        )
        self._clock = clock
        self._runs: dict[str, ResponseRun] = {}
        self._clients: dict[str, trio.CancelScope] = {}
        self._answers: dict[str, Json] = {}
        self._failed: set[str] = set()
        self._rows: dict[str, FakeSequence] = {}
        self._rows_seen = 0
        self._ended: list[str] = []  # in the order in which they were stored
        self._texts = 0
        self.nursery: trio.Nursery
        self._watch("keep")
        self._watch("keep_job")

    def _watch(self, name: str) -> None:
        keep = getattr(self.bench.stored, name)

        def watched(owner: str | None, response: Any, *args: Any, **kwargs: Any) -> Any:
            self._ended.append(response.id)
            return keep(owner, response, *args, **kwargs)

        setattr(self.bench.stored, name, watched)

    async def apply(self, operation: Operation) -> None:
        """Do it, and compare everything."""
        match operation:
            case Create():
                await self._create(operation)
            case Burst(jobs):
                await self._burst(jobs)
            case Poll():
                self._poll(self._choose(operation.which))
            case Delete():
                self._delete(self._choose(operation.which))
            case Cancel():
                await self._cancel(self._choose(operation.which), operation.racing)
            case Leave():
                await self._leave(operation.which)
            case Generate():
                self._generate(operation.which, operation.event)
            case Die():
                await self._die(operation.for_good)
            case Wait(seconds):
                self._clock.jump(seconds)
                self.model.now += seconds
        await self.compare()

    def _choose(self, which: int) -> str:
        """One of the latest, seldom none of them."""
        latest = list(reversed(self.model.asked))
        return latest[which % len(latest)] if latest and which < MOST else UNKNOWN

    # Requests

    async def _burst(self, jobs: int) -> None:
        for _ in range(jobs):
            await self._create(Create(True, False, True, None, 0, True))

    async def _create(self, create: Create) -> None:
        self._texts += 1
        text = f"question {self._texts}" if create.renderable else UNRENDERABLE
        fields: Json = {
            "background": create.background,
            "stream": create.stream and not create.background,
            "store": create.store,
        }
        asked = Asked(id="", text=text, **fields)
        fields["input"] = text
        problem = self._link(create, asked, fields)
        asked.too_large = self.bounds.small and any(self.bounds.huge in text for _, text in asked.history)
        expected = self._capacity_problem(asked)
        outcome = await self._try(fields)
        if problem is not None:
            assert isinstance(outcome, InvalidRequestError)
            assert problem in outcome.message
        elif isinstance(outcome, ApiError):
            self._check_refusal(outcome, expected)
        else:
            assert expected is None
            asked.id = outcome.response_id
            self.model.admit(asked)
            self._start(asked, outcome)

    async def _try(self, fields: Json) -> ResponseRun | ApiError:
        try:
            return await self.bench.prepare(**fields)
        except ApiError as refusal:
            return refusal

    def _check_refusal(self, refusal: ApiError, expected: type[ApiError] | None) -> None:
        if isinstance(refusal, RateLimitError) and expected is not RateLimitError:
            # How much memory each job takes is not modelled; see the tests of ActiveJobs.
            assert self.bounds.small
            assert len(self.bench.active) > 0
        else:
            assert type(refusal) is expected

    def _link(self, create: Create, asked: Asked, fields: Json) -> str | None:
        """Continue something that is not too long; what is wrong with that."""
        model = self.model
        if create.link == "conversation":
            name = f"talk_{create.which % 2}"
            while len(model.conversations.get(name, ())) > MAX_HISTORY:
                name += "_"
            fields["conversation"] = asked.conversation = name
            asked.history = tuple(model.conversations.get(name, ()))
        elif create.link == "chain":
            previous_id = self._choose(create.which)
            previous = model.asked.get(previous_id)
            if previous is not None and len(previous.turns) > MAX_HISTORY:
                return None
            fields["previous_response_id"] = previous_id
            if previous is not None and previous.unfinished and previous.visible:
                return f"has not finished (status: {previous.shown_status})"
            if previous is None or not self._is_stored(previous_id):
                return "No stored response has the id"
            model.use(previous_id)
            if not previous.chainable:
                return "No stored response has the id"
            asked.history = previous.turns
        return None

    def _capacity_problem(self, asked: Asked) -> type[ApiError] | None:
        slots, places = self.bench.slots, self.bounds.slots + self.bounds.depth
        # Of the jobs of one tick, the bench knows better than the model which ones have a place in the queue.
        if not asked.background and asked.text == UNRENDERABLE:
            return InvalidRequestError
        if asked.background and (asked.too_large or len(self.bench.active) >= self.bounds.max_jobs):
            return RateLimitError
        if slots.running + slots.waiting >= places:
            return ServerOverloadedError
        return None if self.model.running else EngineUnavailableError

    def _start(self, asked: Asked, run: ResponseRun) -> None:
        self._runs[asked.id] = run
        if asked.background:
            created = run.detach()
            assert (created.status, created.output) == ("queued", ())
        else:
            self._clients[asked.id] = trio.CancelScope()
            self.nursery.start_soon(self._be_client, asked, run)

    async def _be_client(self, asked: Asked, run: ResponseRun) -> None:
        with self._clients[asked.id]:
            try:
                if asked.stream:
                    self._answers[asked.id] = final(await collect(run))
                else:
                    self._answers[asked.id] = checked(encode(await run.run()))
            except EngineFailureError:
                self._failed.add(asked.id)

    async def _leave(self, which: int) -> None:
        there = [one for one in self.model.queue if not one.background]
        if there:
            asked = there[which % len(there)]
            self._clients[asked.id].cancel()
            self.model.drop(asked)

    # Looking at responses

    def _is_stored(self, response_id: str) -> bool:
        """As the model says; of a small store it learns what had to go."""
        if not self.model.has(response_id):
            return False
        if self.bounds.small and response_id not in {key.id for key in self.bench.stored._store._entries}:
            self.model.evicted(response_id)
            return False
        return True

    def _poll(self, response_id: str) -> None:
        asked = self.model.asked.get(response_id)
        if asked is not None and asked.unfinished and asked.visible:
            response = self.bench.poll(response_id)
            assert response["status"] == asked.shown_status
        elif asked is not None and self._is_stored(response_id):
            assert self.bench.poll(response_id) == asked.final
            self.model.use(response_id)
        else:
            self.assert_missing(self.bench.poll, response_id)

    def assert_missing(self, look: Callable[[str], object], response_id: str) -> None:
        assert isinstance(refusal_of(look, response_id), NotFoundError)

    def _delete(self, response_id: str) -> None:
        asked = self.model.asked.get(response_id)
        if asked is not None and asked.unfinished and asked.visible:
            refusal = refusal_of(self.bench.delete, response_id)
            assert isinstance(refusal, InvalidRequestError)
            assert "has not finished" in refusal.message
        elif asked is not None and self._is_stored(response_id):
            self.bench.delete(response_id)
            self.model.forget(response_id)
            self.assert_missing(self.bench.poll, response_id)
        else:
            self.assert_missing(self.bench.delete, response_id)

    async def _cancel(self, response_id: str, racing: int | None) -> None:
        asked = self.model.asked.get(response_id)
        if asked is None or not asked.unfinished:
            if asked is not None and self._is_stored(response_id):
                assert self.bench.cancel(response_id) == asked.final
                self.model.use(response_id)
            else:
                self.assert_missing(self.bench.cancel, response_id)
            return
        row, outcome = self._rows.get(response_id), "cancelled"
        if racing is not None and row is not None:
            row.stop()
            for _ in range(racing):
                await trio.lowlevel.checkpoint()
            if self._runs[response_id].response.status not in UNFINISHED:
                outcome = "completed"
        if outcome == "cancelled":
            assert self.bench.cancel(response_id)["status"] == "cancelled"
        self.model.end(asked, outcome)

    def _output(self, response: Json) -> str | None:
        messages = texts(response)
        assert len(messages) <= 1
        return messages[0][2] if messages else None

    # The engine

    def _generate(self, which: int, event: str) -> None:
        generating = self.model.generating
        if not generating:
            return
        asked = generating[which % len(generating)]
        row = self._rows[asked.id]
        asked.begun = True
        token = f"t{len(asked.said)}"
        match event:
            case "prefill":
                row.prefill()
            case "token":
                row.say(token)
                asked.said.append(token)
            case "stop":
                row.stop()
                self.model.end(asked, "completed")
            case "length":
                row.say(token, finish="length")
                asked.said.append(token)
                self.model.end(asked, "incomplete")
            case "huge":
                row.say(self.bounds.huge)
                row.stop()
                asked.said.append(self.bounds.huge)
                asked.too_large = self.bounds.small
                self.model.end(asked, "completed")
            case _:
                row.fail()
                self.model.end(asked, "failed")

    async def _die(self, for_good: bool) -> None:
        self.bench.engine.state, self.model.running = "stopped" if for_good else "hanging", False
        for asked in self.model.generating:
            self._rows[asked.id].fail("the engine does no more")
        await self.compare()
        if not for_good:
            self.bench.engine.state, self.model.running = "running", True

    # Comparing

    async def compare(self) -> None:
        """Let everything happen that can, and check every rule."""
        bench, model = self.bench, self.model
        await bench.settled()
        model.fail_what_cannot_start()
        self._compare_ends()
        self._compare_rows()
        assert (bench.slots.running, bench.slots.waiting) == (
            len(model.generating),
            len(model.queue) - len(model.generating),
        )
        assert bench.engine.statistics().rows == len(model.generating)
        assert len(bench.active) == len(model.jobs)
        assert bool(bench.active.retained_bytes) == bool(model.jobs)
        assert bench.active.retained_bytes <= self.bounds.max_bytes
        assert {key.id for key in bench.stored._live} == {asked.id for asked in model.queue}
        assert bench.stored.retained_bytes <= self.bounds.max_bytes
        assert len(bench.stored) <= self.bounds.max_entries
        for name, turns in model.conversations.items():
            assert bench.texts(name) == [f"{role}: {text}" for role, text in turns]
        assert len(bench.conversations) == len(model.conversations)

    def _compare_ends(self) -> None:
        ended, self._ended[:] = list(self._ended), []
        assert len(ended) == len(set(ended)), f"stored twice: {ended}"
        for response_id in ended:
            asked = self.model.asked[response_id]
            assert not asked.unfinished, f"{response_id} has ended"
            self.model.keep(asked)
        for response_id in filter(self._is_stored, ended):
            asked = self.model.asked[response_id]
            asked.final = self.bench.poll(response_id)
            self._check_final(asked, asked.final)
        for asked in self.model.asked.values():
            if asked.id in self._answers:
                self._check_final(asked, self._answers[asked.id])
            assert asked.id not in self._failed or asked.status == "failed"

    def _check_final(self, asked: Asked, response: Json) -> None:
        assert response["status"] == asked.status
        assert self._output(response) == asked.output
        if asked.background:
            assert response["background"] is True
            assert asked.status != "cancelled" or response["usage"]["total_tokens"] == 0
        else:
            assert response == (asked.final or response)

    def _compare_rows(self) -> None:
        """The engine has got the right ones, jobs in order."""
        bench, model = self.bench, self.model
        new = bench.engine.sequences[self._rows_seen :]
        arrived = []
        for number, row in enumerate(new, self._rows_seen):
            prompt = bench.prompt(number)
            candidates = [one for one in model.asked.values() if one.prompt() == prompt]
            if candidates:
                arrived.append(candidates[0])
                self._rows[candidates[0].id] = row
        self._rows_seen += len(new)
        jobs = [asked for asked in arrived if asked.background]
        order = list(model.asked)
        assert jobs == sorted(jobs, key=lambda asked: order.index(asked.id))
        assert all(asked.id in self._rows for asked in model.generating)

    async def finish(self) -> None:
        """Let every row end, until nothing is left."""
        while self.model.generating:
            self._generate(0, "stop")
            await self.compare()
        assert not self.model.queue
        present = [self._is_there(response_id) for response_id in self.model.newest_first()]
        assert present == sorted(present, reverse=True), "not the least recently used went first"
        assert all(present) or self.bounds.small

    def _is_there(self, response_id: str) -> bool:
        if refusal_of(self.bench.poll, response_id) is not None:
            return False
        response = self.bench.poll(response_id)
        assert response == self.model.asked[response_id].final
        assert response["status"] not in UNFINISHED
        return True


def refusal_of(look: Callable[[str], object], response_id: str) -> ApiError | None:
    """What it raises. Without ``pytest.raises``, whose failures hypothesis cannot shrink."""
    try:
        look(response_id)
    except ApiError as refusal:
        return refusal
    return None
