"""Ids of responses, items and calls."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

_RANDOM_BYTES = 24


class IdFactory(Struct, frozen=True):
    """Makes ids that nobody can guess: knowing the id of a response is the permission to read it.

    :param entropy: gives that many bytes from a cryptographic source, such as ``secrets.token_bytes``.
    """

    entropy: Callable[[int], bytes]

    def new(self, prefix: str) -> str:
        """A fresh id, ``"resp"`` to ``"resp_<48 hex digits>"``."""
        return f"{prefix}_{self.entropy(_RANDOM_BYTES).hex()}"
