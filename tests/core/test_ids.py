"""Ids: their form, and that they use all the entropy they ask for."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

import pytest

from mlxcel_trio.core.ids import IdFactory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("prefix", ["resp", "msg", "rs", "fc", "call", "cmp", "conv"])
def test_form(prefix: str) -> None:
    assert re.fullmatch(prefix + "_[0-9a-f]{48}", IdFactory(secrets.token_bytes).new(prefix))


def test_the_bytes_are_the_id() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return bytes(range(count))

    assert IdFactory(entropy).new("resp") == "resp_" + bytes(range(24)).hex()
    assert asked == [24]


def test_each_id_draws_anew() -> None:
    def chunks() -> Iterator[bytes]:
        for byte in range(3):
            yield bytes([byte]) * 24

    draws = chunks()
    ids = IdFactory(lambda _: next(draws))
    assert len({ids.new("msg") for _ in range(3)}) == 3
