"""How many background responses may be unfinished at once, and how much memory they may hold."""

from __future__ import annotations

import sys

from msgspec import Struct

from mlxcel_trio.core.store import ENTRY_OVERHEAD_BYTES
from mlxcel_trio.core.store.ledger import Ledger
from mlxcel_trio.core.transcript import Transcript
from mlxcel_trio.errors import RateLimitError


class JobPlace(Struct, frozen=True, eq=False):
    """The place of one unfinished job. Belongs to the :class:`ActiveJobs` that gave it."""

    own_bytes: int
    transcript: Transcript


class ActiveJobs:
    """Places for unfinished jobs, bounded in number and in memory.

    Memory is counted as in a store: what jobs share of their histories counts once. Not meant to be shared
    between threads.

    Where either bound is 0 there is no background mode, which is the caller's part to refuse.

    :param max_jobs: places at once.
    :param max_bytes: approximate memory of all of them.
    """

    def __init__(self, max_jobs: int, max_bytes: int) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._places: set[JobPlace] = set()
        self._ledger = Ledger()
        self._bytes = 0

    @property
    def enabled(self) -> bool:
        """Whether there can be any job."""
        return self._max_jobs > 0 and self._max_bytes > 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def retained_bytes(self) -> int:
        """Approximate memory that unfinished jobs hold."""
        return self._bytes

    def admit(self, transcript: Transcript, encoded_response: bytes) -> JobPlace:
        """Take a place for a job that answers ``transcript`` and whose object has that form so far.

        :raises RateLimitError: all places are taken, or the memory; nothing has changed.
        """
        if len(self) >= self._max_jobs:
            raise RateLimitError(
                f"{len(self)} background responses are unfinished already, as many as this server runs. "
                "Try again when one has finished."
            )
        own_bytes = ENTRY_OVERHEAD_BYTES + sys.getsizeof(encoded_response)
        added = own_bytes + self._ledger.hold(transcript)
        if self._bytes + added > self._max_bytes:
            self._ledger.release(transcript)
            raise RateLimitError(self._no_memory(own_bytes + transcript.size_bytes))
        self._bytes += added
        place = JobPlace(own_bytes, transcript)
        self._places.add(place)
        return place

    def release(self, place: JobPlace) -> None:
        """Give a place back. Idempotent."""
        if place in self._places:
            self._places.remove(place)
            self._bytes -= place.own_bytes + self._ledger.release(place.transcript)

    def _no_memory(self, needed: int) -> str:
        if needed > self._max_bytes:
            return (
                f"This background response needs {needed} bytes of memory, and all of them together may hold "
                f"{self._max_bytes}. Shorten its history or input, or send it without 'background'."
            )
        return (
            f"Unfinished background responses hold {self._bytes} of at most {self._max_bytes} bytes, which "
            "leaves no room for this one. Try again when one has finished."
        )
