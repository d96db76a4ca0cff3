"""What a bench of jobs and foreground responses must answer: a model that is right because it is simple.

It keeps every request with what has become of it, the order in which they wait, and the order in which stored
responses were used.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from support.job_bench import EPHEMERAL_TTL, UNRENDERABLE

if TYPE_CHECKING:
    from support.published import Json

Turn = tuple[Literal["user", "assistant"], str]

UNFINISHED = ("queued", "in_progress")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The server's settings. ``small`` is a store that holds a few responses only."""

    slots: int
    depth: int
    max_jobs: int
    max_entries: int
    ttl_seconds: int
    small: bool

    @property
    def max_bytes(self) -> int:
        """Of stored responses, and of unfinished jobs."""
        return 9_000 if self.small else 10_000_000

    @property
    def huge(self) -> str:
        """A token that makes an answer too large for a small store."""
        return "x" * self.max_bytes if self.small else "x"


@dataclass(eq=False, kw_only=True)
class Asked:
    """A request that was admitted; ``history`` is what it continues, ``said`` the tokens of its answer."""

    id: str
    text: str
    background: bool
    stream: bool
    store: bool
    history: tuple[Turn, ...] = ()
    conversation: str | None = None
    begun: bool = False
    said: list[str] = field(default_factory=list)
    status: str | None = None
    final: Json | None = None
    too_large: bool = False

    @property
    def unfinished(self) -> bool:
        """Whether it has not ended."""
        return self.status is None

    @property
    def visible(self) -> bool:
        """Whether it can be polled before it has ended."""
        return self.background or self.store

    @property
    def shown_status(self) -> str:
        """How it stands."""
        return self.status or ("in_progress" if self.begun or not self.background else "queued")

    @property
    def output(self) -> str | None:
        """The text of its answer as of its end; ``None`` when there is no message."""
        if self.status in ("completed", "incomplete"):
            return None if self.too_large and self.background else "".join(self.said)
        return None if self.background or not self.said else "".join(self.said)

    @property
    def kept(self) -> bool:
        """Whether it is stored now that it has ended, space permitting."""
        if self.background:
            return True
        return self.store and not self.too_large and (self.stream or self.status != "failed")

    @property
    def chainable(self) -> bool:
        """Whether it can be continued while it is stored."""
        return self.store and not self.too_large

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The dialogue up to its end."""
        answer: tuple[Turn, ...] = () if self.output is None else (("assistant", self.output),)
        return (*self.history, ("user", self.text), *answer)

    def prompt(self) -> list[str]:
        """Its prompt, turn by turn: neighbours of one role are one turn."""
        merged: list[Turn] = []
        for role, text in (*self.history, ("user", self.text)):
            if merged and merged[-1][0] == role:
                merged[-1] = (role, f"{merged[-1][1]}\n\n{text}")
            else:
                merged.append((role, text))
        return [f"{role}: {text}" for role, text in merged]


class JobModel:
    """See the module. ``now`` is in seconds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.now = 0.0
        self.running = True
        self.asked: dict[str, Asked] = {}
        self.queue: list[Asked] = []
        self.conversations: dict[str, list[Turn]] = {}
        self._stored: OrderedDict[str, float] = OrderedDict()  # with their ends, in order of use

    # Who waits and who has a slot

    @property
    def generating(self) -> list[Asked]:
        """Those with a slot."""
        return self.queue[: self.bounds.slots]

    @property
    def jobs(self) -> list[Asked]:
        """The unfinished ones."""
        return [asked for asked in self.queue if asked.background]

    @property
    def queue_is_full(self) -> bool:
        """Whether nobody else is admitted."""
        return len(self.queue) >= self.bounds.slots + self.bounds.depth

    def admit(self, asked: Asked) -> None:
        """Take a request in; a job may find the queue full after all."""
        self.asked[asked.id] = asked
        if self.queue_is_full:
            asked.status = "failed"
        else:
            self.queue.append(asked)

    def end(self, asked: Asked, status: str) -> None:
        """One that has not ended ends; the next one gets its slot."""
        assert asked.unfinished
        if asked.too_large and asked.background:
            asked.status = "failed" if status in ("completed", "incomplete") else status
        else:
            asked.status = status
        self.queue.remove(asked)
        self._append_turn(asked)

    def _append_turn(self, asked: Asked) -> None:
        has_output = asked.status in ("completed", "incomplete") and asked.output is not None
        if asked.store and asked.conversation is not None and has_output:
            self.conversations.setdefault(asked.conversation, []).extend(asked.turns[len(asked.history) :])

    def fail_what_cannot_start(self) -> None:
        """Those with a slot whose prompt cannot be rendered, and all of them without an engine, fail."""
        while doomed := [one for one in self.generating if one.text == UNRENDERABLE or not self.running]:
            self.end(doomed[0], "failed")

    def drop(self, asked: Asked) -> None:
        """Its client has gone."""
        self.queue.remove(asked)
        del self.asked[asked.id]

    # What is stored

    def keep(self, asked: Asked) -> None:
        """Store what has ended, as the most recently used."""
        self.expire()
        if asked.kept:
            self._stored[asked.id] = self.now
            while len(self._stored) > self.bounds.max_entries:
                self._stored.popitem(last=False)

    def expire(self) -> None:
        """Forget what is too old."""
        for response_id, end in list(self._stored.items()):
            ttl = self._ttl(self.asked[response_id])
            if ttl and self.now - end >= ttl:
                del self._stored[response_id]

    def _ttl(self, asked: Asked) -> float:
        return EPHEMERAL_TTL if asked.background and not asked.store else self.bounds.ttl_seconds

    def has(self, response_id: str) -> bool:
        """Whether it is stored; a small store may have had to let it go."""
        self.expire()
        return response_id in self._stored

    def use(self, response_id: str) -> None:
        """It is the most recently used one now."""
        self._stored.move_to_end(response_id)

    def forget(self, response_id: str) -> None:
        """It was deleted."""
        del self._stored[response_id]

    def evicted(self, response_id: str) -> None:
        """A small store let go of it: it has done so with all that were not used since."""
        assert self.bounds.small, f"{response_id} is gone"
        while response_id in self._stored:
            self._stored.popitem(last=False)

    def newest_first(self) -> list[str]:
        """What is stored, in order of use."""
        self.expire()
        return list(reversed(self._stored))
