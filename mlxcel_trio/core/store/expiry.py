"""Which keys are due, without looking at those that are not."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Generic, TypeVar

K = TypeVar("K")


class ExpiryQueues(Generic[K]):
    """Keys with an age. One queue for each TTL in use, of which there are few: its first key is due first.

    Times are in seconds and never go back. A TTL of 0 is none.
    """

    def __init__(self) -> None:
        self._queues: defaultdict[float, OrderedDict[K, float]] = defaultdict(OrderedDict)

    def start(self, key: K, *, ttl_seconds: float, now: float) -> None:
        """Let the age of a new key count from ``now``."""
        if ttl_seconds:
            self._queues[ttl_seconds][key] = now

    def stop(self, key: K, *, ttl_seconds: float) -> None:
        """Forget a key that was started with that TTL."""
        if ttl_seconds:
            del self._queues[ttl_seconds][key]

    def due(self, now: float) -> K | None:
        """A key whose age is its TTL or more; it stays until it is stopped."""
        for ttl_seconds, queue in self._queues.items():
            if queue:
                key = next(iter(queue))
                if now - queue[key] >= ttl_seconds:
                    return key
        return None
