"""Tells the ids of responses that no client has heard of yet."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from mlxcel_trio import server
from mlxcel_trio.core.ids import IdFactory

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def known_ids() -> Iterator[list[str]]:
    """The ids that servers started in the block give to responses, from the oldest on."""
    ids: list[str] = []

    class KnownIds(IdFactory, frozen=True):
        def new(self, prefix: str) -> str:
            made = super().new(prefix)
            if prefix == "resp":
                ids.append(made)
            return made

    with mock.patch.object(server, "IdFactory", KnownIds):
        yield ids
