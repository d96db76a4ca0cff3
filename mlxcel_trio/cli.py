"""The commands ``mlxcel`` and ``mlxcel-server``.

Everything but flags is imported when a command runs, so that ``--help`` answers at once. Exit codes:

===  ==================================================================================
0    done; for a server: stopped by SIGINT or SIGTERM
1    it could not be done: no such model, a full disk; one line on stderr. Or a server that was told to stop
     could not, because the model hangs
2    a flag, a variable, the address or the installation is wrong; one line on stderr
130  interrupted before the server was serving, or once more while it was stopping
===  ==================================================================================

Any other exception is a defect of this package and ends with its traceback and code 1.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from mlxcel_trio.errors import ConfigurationError, MlxcelError
from mlxcel_trio.options import CommandParser
from mlxcel_trio.settings import parse_settings, read_api_key_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    import trio

SWITCH_SECONDS = 0.0005
"""Python's thread switch interval in the server's own process; an embedder's is left alone."""

STOP_SECONDS = 5.0
"""What a server may take to stop once no request runs: the engine thread ends after the step in progress."""


def main(argv: Sequence[str] | None = None) -> int:
    """``mlxcel``: run a command and return its exit code. ``--help`` raises ``SystemExit(0)``."""
    arguments = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: _mlxcel(arguments))


def serve_main(argv: Sequence[str] | None = None) -> int:
    """``mlxcel-server``: the same as ``mlxcel serve``."""
    arguments = sys.argv[1:] if argv is None else argv
    return exit_code_of(lambda: _serve(arguments, prog="mlxcel-server"))


def exit_code_of(command: Callable[[], None]) -> int:
    """Call ``command`` and turn the way it ends into an exit code and at most one line on stderr."""
    try:
        command()
    except BaseException as error:
        code = _explain(error)
        if code is None:
            raise
        return code
    finally:
        _flush_stdout()
    return 0


def run_server(serve: Callable[..., Awaitable[None]], *, graceful_timeout: float) -> None:
    """Run ``serve(shutdown=..., task_status=...)`` until it returns, as the only occupant of this process.

    ``serve`` reports its URL as started when it serves; that URL is the one line on stdout. From then on the
    first SIGINT or SIGTERM sets ``shutdown``, a ``trio.Event``, and the second cancels; until then the first
    cancels.

    A thread that hangs cannot be ended, and trio waits for it. So the process exits with 1 when ``serve`` has
    not returned ``STOP_SECONDS`` after a cancel, or after ``graceful_timeout`` seconds from the shutdown.

    :raises KeyboardInterrupt: ``serve`` was cancelled; it comes in trio's exception groups.
    """
    import trio

    # While the engine thread builds a step it gives the interpreter up once in so long: HTTP waits for that.
    sys.setswitchinterval(SWITCH_SECONDS)
    trio.run(_serve_until_signalled, serve, graceful_timeout)


async def _serve_until_signalled(serve: Callable[..., Awaitable[None]], graceful_timeout: float) -> None:
    import trio

    serving, shutdown, stopped = trio.Event(), trio.Event(), trio.Event()
    patience = trio.CancelScope(shield=True)

    async def heed_signals(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if shutdown.is_set() or not serving.is_set():
                    patience.deadline = trio.current_time() + STOP_SECONDS
                    raise KeyboardInterrupt
                patience.deadline = trio.current_time() + graceful_timeout + STOP_SECONDS
                shutdown.set()

    async with trio.open_nursery() as signal_nursery:
        signal_nursery.start_soon(_exit_unless_stopped, stopped, patience)
        await signal_nursery.start(heed_signals)
        try:
            async with trio.open_nursery() as server_nursery:
                url = await server_nursery.start(partial(serve, shutdown=shutdown))
                _spare_garbage_collector()
                serving.set()
                _print_url(url)
        finally:
            stopped.set()
        signal_nursery.cancel_scope.cancel()


def _spare_garbage_collector() -> None:
    """Keep it from looking at all that was loaded again and again, which stops streams for 30 ms or more."""
    gc.collect()
    gc.freeze()


async def _exit_unless_stopped(stopped: trio.Event, patience: trio.CancelScope) -> None:
    """Wait for ``stopped`` until ``patience`` ends."""
    with patience:
        await stopped.wait()
    if not stopped.is_set():
        from mlxcel_trio.log import get_logger

        get_logger(__name__).error("engine_hangs", reason="Its step does not end. The process exits now.")
        os._exit(1)


def _mlxcel(argv: Sequence[str]) -> None:
    parser = CommandParser(
        "mlxcel",
        description="The OpenAI Responses API on a local MLX model.",
        epilog="Run mlxcel serve --help or mlxcel pull --help for what a command takes.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("command", nargs="?", choices=("serve", "pull"), help="serve or fetch a model")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="flags and arguments of the command")
    given = parser.parse_args(argv)
    if given.version:
        _print_version()
    elif given.command == "serve":
        _serve(given.arguments, prog="mlxcel serve")
    elif given.command == "pull":
        _pull(given.arguments)
    else:
        parser.error("a command is required: serve or pull")


def _serve(argv: Sequence[str], *, prog: str) -> None:
    settings = read_api_key_file(parse_settings(argv, os.environ, prog=prog))

    from mlxcel_trio.engine.models import cache_directory, resolve_model
    from mlxcel_trio.log import configure_logging, get_logger
    from mlxcel_trio.server import serve

    configure_logging(settings.log_level, settings.log_format, sys.stderr)
    # Before trio starts: this may take minutes, and an interrupt has to reach it.
    model = resolve_model(settings.model, cache_dir=cache_directory(), report=get_logger(__name__).info)
    run_server(partial(serve, settings, model=model), graceful_timeout=settings.graceful_timeout)


def _pull(argv: Sequence[str]) -> None:
    parser = CommandParser("mlxcel pull", description="Fetch a model ahead of serving it; print its place.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="as for --model (default: the demo model)")
    name = parser.parse_args(argv).name

    from mlxcel_trio.engine.models import cache_directory, resolve_model

    model = resolve_model(name, cache_dir=cache_directory(), report=partial(print, file=sys.stderr))
    print(model.directory)  # noqa: T201


def _print_version() -> None:
    from importlib import metadata

    try:
        version = metadata.version("mlxcel-trio")
    except metadata.PackageNotFoundError:
        raise ConfigurationError("mlxcel-trio is not installed here; install it with pip.") from None
    print(f"mlxcel {version}")  # noqa: T201


def _print_url(url: str) -> None:
    try:
        print(url, flush=True)  # noqa: T201
    except OSError:
        # Whoever started the server does not read its output; clients may know the address all the same.
        _discard_stdout()


def _explain(error: BaseException) -> int | None:
    """Tell the user about ``error`` and give its exit code; ``None`` for a defect or a ``SystemExit``."""
    causes = list(_causes(error))
    if not all(isinstance(cause, MlxcelError | OSError | KeyboardInterrupt) for cause in causes):
        return None
    if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
        print("mlxcel: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    line = " ".join(str(causes[0]).split())
    print(f"mlxcel: error: {line}", file=sys.stderr)  # noqa: T201
    return 2 if isinstance(causes[0], ConfigurationError) else 1


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside trio's nested groups."""
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _causes(member)
    else:
        yield error


def _flush_stdout() -> None:
    # At interpreter exit it would be too late: Python then complains about a closed pipe and exits with 120.
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
