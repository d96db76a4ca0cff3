"""The OpenAI Responses API on a local MLX model, built on trio.

``open_engine`` opens a model inside your own nursery, ``serve`` the whole server::

    async with open_engine() as engine:
        prompt = engine.tokenizer.render([ChatMessage("user", "Hello!")])
        with engine.generate(prompt.tokens) as sequence:
            print(await sequence.text())

``ARCHITECTURE.md`` beside this file is the page to read first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxcel_trio.core.messages import ChatMessage
    from mlxcel_trio.core.sampling import SamplingParameters
    from mlxcel_trio.engine.api import Engine
    from mlxcel_trio.engine.mlx_engine import open_engine
    from mlxcel_trio.server import serve
    from mlxcel_trio.settings import Settings

__all__ = ["ChatMessage", "Engine", "SamplingParameters", "Settings", "open_engine", "serve"]

_HOMES = {
    "ChatMessage": "core.messages",
    "Engine": "engine.api",
    "SamplingParameters": "core.sampling",
    "Settings": "settings",
    "open_engine": "engine.mlx_engine",
    "serve": "server",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line has to answer --help without loading any of it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
