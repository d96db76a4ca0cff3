"""``python -m mlxcel_trio.testing --script FILE [any serve flag]``: the real server on a scripted backend."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from mlxcel_trio.cli import exit_code_of, run_server
from mlxcel_trio.log import configure_logging
from mlxcel_trio.options import Option, file_path, parse_options
from mlxcel_trio.server import Model, serve_engine
from mlxcel_trio.settings import Settings, read_api_key_file
from mlxcel_trio.testing.script import Script
from mlxcel_trio.testing.scripted_backend import scripted_engine


class ScriptedSettings(Settings, frozen=True, kw_only=True):
    """The server's settings and the script."""

    script: Annotated[Path, Option(file_path(), "JSON lines that say what is answered.")]


def main() -> int:
    """Serve until a signal comes; returns the exit code."""
    return exit_code_of(_serve)


def _serve() -> None:
    settings = read_api_key_file(
        parse_options(
            ScriptedSettings,
            sys.argv[1:],
            os.environ,
            prog="python -m mlxcel_trio.testing",
            description="Serve the Responses API with answers from a script.",
        )
    )
    configure_logging(settings.log_level, settings.log_format, sys.stderr)
    engine = scripted_engine(
        Script.load(settings.script),
        context_window=settings.ctx_size,
        decode_timeout=settings.decode_timeout,
    )
    serve = partial(serve_engine, settings, engine, Model(("scripted",)))
    run_server(serve, graceful_timeout=settings.graceful_timeout)


if __name__ == "__main__":
    sys.exit(main())
