"""Recommended sampling: good values are taken, bad ones are left out, a broken file is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlxcel_trio.core.sampling import SamplingDefaults
from mlxcel_trio.engine.models import sampling_defaults
from mlxcel_trio.errors import CorruptModelError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", SamplingDefaults()),
        (
            '{"temperature": 0.2, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "eos_token_id": [1]}',
            SamplingDefaults(0.2, 0.9, 40, 0.1),
        ),
        ('{"temperature": 1, "top_k": 20.0}', SamplingDefaults(1.0, 1.0, 20)),
        ('{"temperature": null, "top_p": 0, "top_k": -1, "min_p": true}', SamplingDefaults()),
        ('{"temperature": "hot", "top_p": 1.5, "top_k": 2.5, "min_p": 2}', SamplingDefaults()),
    ],
)
def test_values(tmp_path: Path, text: str, expected: SamplingDefaults) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    assert sampling_defaults(tmp_path) == expected


def test_no_file(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize("data", [b"[]", b"{", b"\xff", b'{"a": 1e999}', b"[" * 100_000])
def test_a_broken_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "generation_config.json").write_bytes(data)
    with pytest.raises(CorruptModelError, match=r"generation_config\.json"):
        sampling_defaults(tmp_path)
