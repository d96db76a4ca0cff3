"""Creating responses: from a decoded request to a run that can begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio
from msgspec import Struct
from msgspec.structs import replace

from mlxcel_trio.core.dialogue import continue_dialogue
from mlxcel_trio.core.emitter import Emitter
from mlxcel_trio.core.history import to_messages
from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.core.skeleton import open_response
from mlxcel_trio.core.transcript import EMPTY
from mlxcel_trio.core.validation import ValidationContext, check_not_empty, validate_create
from mlxcel_trio.core.validation.refusals import shown
from mlxcel_trio.engine.bridge import EngineState
from mlxcel_trio.errors import ApiError, InvalidRequestError, NotFoundError
from mlxcel_trio.protocol.codec import encode
from mlxcel_trio.protocol.models import ModelList, ModelObject
from mlxcel_trio.protocol.responses import InputTokens
from mlxcel_trio.service.closing import ClosingTime
from mlxcel_trio.service.generation import Generation
from mlxcel_trio.service.pipeline import ResponseRun
from mlxcel_trio.service.record import OpenDialogue, Record
from mlxcel_trio.service.starts import ForegroundStart, JobStart, Turns

if TYPE_CHECKING:
    from mlxcel_trio.core.dialogue import Dialogue
    from mlxcel_trio.core.jobs import ActiveJobs
    from mlxcel_trio.core.plan import CreatePlan
    from mlxcel_trio.engine.api import Engine
    from mlxcel_trio.engine.tokenizer import RenderedPrompt
    from mlxcel_trio.protocol.requests import CreateResponse
    from mlxcel_trio.protocol.responses import Response
    from mlxcel_trio.service.admission import Slots
    from mlxcel_trio.service.conversations import Conversations
    from mlxcel_trio.service.jobs import Jobs
    from mlxcel_trio.service.starts import Start
    from mlxcel_trio.service.stored_responses import StoredResponses

RENDER_THREADS = 2


class ServedModel(Struct, frozen=True):
    """The names of the loaded model and what applies when a request leaves sampling open.

    ``names`` maps every accepted name to the canonical one that responses echo; ``hidden`` are accepted but
    not listed. ``created`` is in Unix seconds.
    """

    names: Mapping[str, str]
    hidden: frozenset[str]
    sampling: SamplingDefaults
    created: int


class Health(Struct, frozen=True):
    """The body of ``GET /health``; ``ok`` decides between 200 and 503.

    ``running`` and ``waiting`` are admitted responses with and without a slot, ``jobs`` and ``job_bytes`` the
    unfinished background ones and their memory, ``rows`` the sequences that the engine holds, ``steps`` and
    ``sampled_tokens`` its totals.
    """

    ok: bool
    engine: EngineState
    running: int
    waiting: int
    jobs: int
    job_bytes: int
    rows: int
    steps: int
    sampled_tokens: int


class Responses:
    """Creates responses on one engine. Used from the trio thread by any number of tasks."""

    def __init__(
        self,
        engine: Engine,
        model: ServedModel,
        slots: Slots,
        stored: StoredResponses,
        conversations: Conversations,
        jobs: Jobs,
        *,
        active_jobs: ActiveJobs,
        new_id: Callable[[str], str],
        wall_clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._model = model
        self._slots = slots
        self._stored = stored
        self._conversations = conversations
        self._jobs = jobs
        self._active_jobs = active_jobs
        self._turns = Turns()
        self._new_id = new_id
        self._wall_clock = wall_clock
        self._closing = ClosingTime()
        self._render_limiter = trio.CapacityLimiter(RENDER_THREADS)
        self._validation = ValidationContext(
            names=model.names,
            sampling=model.sampling,
            store_enabled=stored.enabled,
            conversations_enabled=conversations.enabled,
            background_enabled=active_jobs.enabled,
        )

    async def prepare(self, request: CreateResponse, owner: str | None) -> ResponseRun:
        """Validate, render and admit. Until the run is opened or closed it holds its queue place.

        ``owner`` is whose stored state the request sees, and adds to. A background response is not rendered
        yet: this returns without a checkpoint then.

        :raises InvalidRequestError: the request can never succeed.
        :raises EngineUnavailableError: the engine is loading or has stopped.
        :raises RateLimitError: there are too many unfinished jobs.
        :raises ServerOverloadedError: the queue is full.
        """
        plan = validate_create(request, self._validation)
        opened = self._open_dialogue(plan, owner)
        self._check_logit_bias(plan)
        response = open_response(plan, response_id=self._new_id("resp"), created_at=int(self._wall_clock()))
        detach: Callable[[ResponseRun], None] | None = None
        start: Start
        if plan.background:
            start = job_start = self._start_job(plan, opened.dialogue, response)
            detach = partial(self._jobs.start, enter_queue=job_start.enter_queue)
        else:
            start = await self._start_foreground(plan, opened.dialogue)
        return ResponseRun(
            engine=self._engine,
            start=start,
            closing=self._closing,
            emitter=Emitter(response, self._new_id),
            record=Record(self._stored, self._conversations, owner=owner, plan=plan, opened=opened),
            detach=detach,
            stream=plan.stream,
            wall_clock=self._wall_clock,
        )

    async def count_input_tokens(self, request: CreateResponse, owner: str | None) -> InputTokens:
        """The length of the prompt that the request would have. The model may be left out.

        :raises InvalidRequestError: the request can never succeed.
        """
        if request.model is None:
            request = replace(request, model=next(iter(self._model.names)))
        plan = validate_create(request, self._validation)
        prompt = await self._render(plan, self._open_dialogue(plan, owner).dialogue)
        return InputTokens(input_tokens=len(prompt.tokens))

    def close_at(self, deadline: float) -> None:
        """End what is still running at ``deadline``, in trio's time: its clients get a failed response."""
        self._closing.set(deadline)

    def models(self) -> ModelList:
        """Every name that requests may use, but for the reserved ones."""
        listed = [name for name in self._model.names if name not in self._model.hidden]
        return ModelList(tuple(ModelObject(name, self._model.created) for name in listed))

    def model(self, name: str) -> ModelObject:
        """One of them.

        :raises NotFoundError: no such name.
        """
        if name not in self._model.names:
            listed = ", ".join(f"'{model.id}'" for model in self.models().data)
            raise NotFoundError(f"No model {shown(name)} here. Loaded: {listed}.", code="model_not_found")
        return ModelObject(name, self._model.created)

    def health(self) -> Health:
        """Whether new work would be taken, with the figures of engine and queue."""
        engine = self._engine.statistics()
        return Health(
            ok=engine.state == "running",
            engine=engine.state,
            running=self._slots.running,
            waiting=self._slots.waiting,
            jobs=len(self._active_jobs),
            job_bytes=self._active_jobs.retained_bytes,
            rows=engine.rows,
            steps=engine.steps,
            sampled_tokens=engine.sampled_tokens,
        )

    def _open_dialogue(self, plan: CreatePlan, owner: str | None) -> OpenDialogue:
        history, existed = EMPTY, False
        if plan.previous_response_id is not None:
            history = self._stored.history(owner, plan.previous_response_id)
        elif plan.conversation is not None:
            history, existed = self._conversations.open(owner, plan.conversation.id)
        find_item = partial(self._conversations.find_item, owner)
        dialogue = continue_dialogue(history, plan.items, find_item=find_item, new_id=self._new_id)
        check_not_empty(dialogue.items, plan.instructions)
        return OpenDialogue(dialogue, existed)

    async def _start_foreground(self, plan: CreatePlan, dialogue: Dialogue) -> ForegroundStart:
        generation = await self._generation(plan, dialogue)
        self._engine.check_running()
        return ForegroundStart(generation, self._slots, self._slots.admit())

    def _start_job(self, plan: CreatePlan, dialogue: Dialogue, response: Response) -> JobStart:
        place = self._active_jobs.admit(dialogue.history.append(dialogue.own), encode(response))
        try:
            self._slots.check_room()
            self._engine.check_running()
        except ApiError:
            self._active_jobs.release(place)
            raise
        render = partial(self._generation, plan, dialogue)
        return JobStart(render, self._slots, self._turns, self._active_jobs, place)

    def _check_logit_bias(self, plan: CreatePlan) -> None:
        size = self._engine.model.vocabulary_size
        unknown = [token for token, _ in plan.adjustments.logit_bias if token >= size]
        if unknown:
            raise InvalidRequestError(
                f"Token {unknown[0]} is not one of the model's {size}. Use ids from 0 to {size - 1}.",
                param="logit_bias",
            )

    async def _generation(self, plan: CreatePlan, dialogue: Dialogue) -> Generation:
        prompt = await self._render(plan, dialogue)
        window = self._engine.model.context_window
        room = window - len(prompt.tokens)
        if room < 1:
            raise _prompt_too_long(len(prompt.tokens), window)
        return Generation(
            prompt=prompt,
            max_tokens=min(plan.max_output_tokens or room, room),
            sampling=plan.sampling,
            adjustments=plan.adjustments,
            top_logprobs=plan.top_logprobs if plan.logprobs else None,
            stops=plan.stop,
            background=plan.background,
        )

    async def _render(self, plan: CreatePlan, dialogue: Dialogue) -> RenderedPrompt:
        def render() -> RenderedPrompt:
            messages = to_messages(dialogue.items, plan.instructions)
            return self._engine.tokenizer.render(messages, template_kwargs=plan.template_kwargs)

        # Rendering has no effects, so a cancelled request need not wait for it.
        return await trio.to_thread.run_sync(render, limiter=self._render_limiter, abandon_on_cancel=True)


def _prompt_too_long(tokens: int, window: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"The prompt has {tokens} tokens; this model's context window of {window} leaves room for "
        f"{window - 1} at most. Shorten the input.",
        param="input",
        code="context_length_exceeded",
    )
