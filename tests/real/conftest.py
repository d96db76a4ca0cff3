"""The demo model, for the long lane: it is fetched unless that was done before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from mlxcel_trio.engine.models import cache_directory, resolve_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
async def demo() -> Path:
    """Its directory."""
    resolve = partial(resolve_model, None, cache_dir=cache_directory(), report=lambda _line: None)
    return (await trio.to_thread.run_sync(resolve)).directory
