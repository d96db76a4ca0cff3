"""Log probabilities as the wire has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcel_trio.protocol.responses import TokenLogprob, TopLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence


def token_logprob(sampled: bytes, value: float, top: Sequence[tuple[bytes, float]]) -> TokenLogprob:
    """The entry of one sampled token; ``top`` has the alternatives as (bytes of the token, log probability).

    A token that is part of a character reads as U+FFFD; its ``bytes`` are exact.
    """
    return TokenLogprob(
        token=_text(sampled),
        logprob=value,
        bytes=tuple(sampled),
        top_logprobs=tuple(TopLogprob(_text(spelled), logprob, tuple(spelled)) for spelled, logprob in top),
    )


def _text(spelled: bytes) -> str:
    return spelled.decode("utf-8", "replace")
