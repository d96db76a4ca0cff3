"""Logging of the server process.

Only the command line configures it, once; a program that embeds the server keeps its own configuration.
Everything goes through the standard library's root handler: our events, which structlog renders, and the
records of other libraries, which get the same form. A line that cannot be written is dropped and never
reaches the code that logged it.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, TextIO, cast

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

    from mlxcel_trio.settings import LogFormat, LogLevel

_LEVELS: Mapping[LogLevel, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

# C0 and C1 controls and the Unicode line ends, each as Python would write it.
_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger for the module ``name``; safe at import time, since it is bound on first use."""
    return cast("FilteringBoundLogger", structlog.get_logger(name))


def configure_logging(level: LogLevel, log_format: LogFormat, stream: TextIO) -> None:
    """Send every log line of this process to ``stream``, one line an event but for tracebacks.

    Times are UTC in ISO 8601; what is bound in structlog's contextvars is merged in. Other libraries are
    heard from ``warning`` on, with ``debug`` from ``info`` on. Colours appear on a terminal only, and not
    when ``NO_COLOR`` is set.
    """
    severity = _LEVELS[level]
    described: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*described, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(severity),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=described,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(log_format, stream),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(severity, logging.INFO if level == "debug" else logging.WARNING))
    logging.getLogger("mlxcel_trio").setLevel(severity)
    logging.setLoggerClass(_PropagatingLogger)
    logging.captureWarnings(True)


def _renderers(log_format: LogFormat, stream: TextIO) -> list[Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    console = structlog.dev.ConsoleRenderer(
        colors=stream.isatty() and not os.environ.get("NO_COLOR"),
        # The default would use rich where it is installed and print local variables, prompts among them.
        exception_formatter=structlog.dev.plain_traceback,
    )
    return [_escape_controls, console]


def _escape_controls(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Keep what clients send from breaking lines or steering the terminal."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = value.rstrip("\n").translate(_ESCAPES)
    return event


class _PropagatingLogger(logging.Logger):
    """The loggers of libraries that are imported later. Some (transformers, huggingface_hub) bring handlers
    of their own and cut themselves off from the root; here their records reach it all the same, once.
    """

    def addHandler(self, hdlr: logging.Handler) -> None:  # noqa: N802
        """Leave ``hdlr`` out."""

    @property
    def propagate(self) -> bool:
        return True

    @propagate.setter
    def propagate(self, value: bool) -> None:
        """Stay ``True``."""
