"""What reaches the log stream, in both formats: our events, other libraries' records, exceptions."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from mlxcel_trio.log import configure_logging, get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    """Give the test a process of which the test runner's own handlers are no part, and clean up."""
    root, ours = logging.getLogger(), logging.getLogger("mlxcel_trio")
    handlers, levels = root.handlers, (root.level, ours.level)
    yield
    root.handlers = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.setLoggerClass(logging.Logger)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, s: str) -> int:
        raise BrokenPipeError


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_event() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    before = datetime.now(UTC)
    get_logger("mlxcel_trio.a").info("served", path="/x", status=200)
    [event] = events(stream)
    stamp = event.pop("timestamp")
    assert stamp.endswith("Z")
    assert before <= datetime.fromisoformat(stamp) <= datetime.now(UTC)
    assert event == {
        "event": "served",
        "level": "info",
        "logger": "mlxcel_trio.a",
        "path": "/x",
        "status": 200,
    }


def test_console_event_is_plain_off_a_terminal() -> None:
    stream = io.StringIO()
    configure_logging("info", "console", stream)
    get_logger("mlxcel_trio.a").warning("slow 100%s", seconds=3, why="a b")
    [line] = stream.getvalue().splitlines()
    assert "\x1b" not in line
    stamp, rest = line.split(" ", 1)
    assert datetime.fromisoformat(stamp).tzinfo is UTC
    assert rest.split() == ["[warning", "]", "slow", "100%s", "[mlxcel_trio.a]", "seconds=3", "why='a", "b'"]


def test_console_is_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()
    configure_logging("info", "console", coloured)
    get_logger("mlxcel_trio.a").info("x")
    monkeypatch.setenv("NO_COLOR", "1")
    configure_logging("info", "console", plain)
    get_logger("mlxcel_trio.a").info("x")
    assert "\x1b[" in coloured.getvalue()
    assert "\x1b" not in plain.getvalue()


def test_a_logger_made_before_the_configuration_obeys_it() -> None:
    logger = get_logger("mlxcel_trio.early")
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", "json", first)
    logger.info("one")
    configure_logging("error", "json", second)
    logger.info("two")
    logger.error("three")
    assert [event["event"] for event in events(first)] == ["one"]
    assert [event["event"] for event in events(second)] == ["three"]


@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["info", "warning", "error"]),
        ("info", ["info", "warning", "error"], ["warning", "error"]),
        ("warning", ["warning", "error"], ["warning", "error"]),
        ("error", ["error"], ["error"]),
    ],
)
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_levels(level: Any, ours: list[str], theirs: list[str], log_format: Any) -> None:
    stream = io.StringIO()
    configure_logging(level, log_format, stream)
    for name in ("debug", "info", "warning", "error"):
        getattr(get_logger("mlxcel_trio.a"), name)("ours", severity=name)
        getattr(logging.getLogger("library"), name)("theirs %s", name)
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(ours) + len(theirs)
    assert all(any("ours" in line and name in line for line in lines) for name in ours)
    assert all(any(f"theirs {name}" in line for line in lines) for name in theirs)


def test_context_is_merged_into_every_line() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        get_logger("mlxcel_trio.a").info("ours")
        logging.getLogger("library").warning("theirs")
    get_logger("mlxcel_trio.a").info("after")
    assert [(event["event"], event.get("request_id")) for event in events(stream)] == [
        ("ours", "r1"),
        ("theirs", "r1"),
        ("after", None),
    ]


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("through", ["structlog", "logging"])
def test_exceptions_come_with_traceback_and_without_variables(log_format: Any, through: str) -> None:
    stream = io.StringIO()
    configure_logging("info", log_format, stream)
    logger: Any = get_logger("mlxcel_trio.a") if through == "structlog" else logging.getLogger("library")
    prompt = "".join(["hid", "den"])
    try:
        raise ExceptionGroup("two things", [ValueError("bad value"), KeyError("k")])
    except ExceptionGroup:
        logger.exception("failed")
    written = stream.getvalue()
    assert "failed" in written
    assert "ExceptionGroup: two things" in written
    assert "ValueError: bad value" in written
    assert "test_log.py" in written
    assert prompt not in written
    if log_format == "json":
        [event] = events(stream)
        assert event["level"] == "error"


@pytest.mark.parametrize("hostile", ["a\nb", "\x1b[2J", "a\r\n", "\u2028", "\x9b31m", "\x00"])
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_clients_send_stays_on_its_line(hostile: str, log_format: Any) -> None:
    stream = io.StringIO()
    configure_logging("info", log_format, stream)
    get_logger("mlxcel_trio.a").info(f"event {hostile}.", path=hostile)
    logging.getLogger("library").warning("record %s.", hostile)
    written = stream.getvalue()
    assert written.count("\n") == 2
    assert all(character.isprintable() for character in written.replace("\n", ""))
    if log_format == "json":
        assert [event["event"] for event in events(stream)] == [f"event {hostile}.", f"record {hostile}."]


def test_any_value_can_be_logged() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    get_logger("mlxcel_trio.a").info("x", a=object(), b=Path("/p"), c={1}, d="\udcff", e=None)
    [event] = events(stream)
    assert event["d"] == "\udcff"
    assert event["e"] is None


def test_warnings_are_records() -> None:
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging("info", "json", stream)
        warnings.warn("careful", stacklevel=1)
    [event] = events(stream)
    assert (event["logger"], event["level"]) == ("py.warnings", "warning")
    assert "UserWarning: careful" in event["event"]


def test_a_library_cannot_keep_its_records_to_itself() -> None:
    stream, own = io.StringIO(), io.StringIO()
    configure_logging("info", "json", stream)
    logger = logging.getLogger("library_imported_later")
    logger.addHandler(logging.StreamHandler(own))
    logger.propagate = False
    logging.getLogger("library_imported_later.part").warning("once")
    assert own.getvalue() == ""
    assert [event["event"] for event in events(stream)] == ["once"]


def test_a_closed_stream_does_not_reach_the_code_that_logs() -> None:
    configure_logging("info", "console", Closed())
    get_logger("mlxcel_trio.a").info("x")
    logging.getLogger("library").warning("x")


REAL_LIBRARIES = """
import logging, sys
from mlxcel_trio.log import configure_logging
configure_logging("info", "json", sys.stderr)
import huggingface_hub, transformers
transformers.utils.logging.get_logger("transformers.tokenization").warning("from transformers")
huggingface_hub.logging.get_logger("huggingface_hub.file_download").warning("from the hub")
logging.getLogger("hypercorn.error").warning("from hypercorn")
"""


def test_every_line_of_the_real_libraries_is_json() -> None:
    command = [sys.executable, "-c", REAL_LIBRARIES]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == ""
    logged = [json.loads(line)["event"] for line in run.stderr.splitlines()]
    for sent in ("from transformers", "from the hub", "from hypercorn"):
        assert logged.count(sent) == 1
