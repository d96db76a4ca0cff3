"""The commands as processes: exit codes, what is printed where, what is imported; and how errors are told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlxcel_trio.cli import exit_code_of
from mlxcel_trio.errors import ConfigurationError, DownloadError, ModelNotFoundError
from mlxcel_trio.options import settings_of
from mlxcel_trio.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parent.parent
TINY_MODEL = ROOT / "tests" / "tiny_model"

MLXCEL = ("-m", "mlxcel_trio")
SERVE = (*MLXCEL, "serve")
# What the installed script does.
MLXCEL_SERVER = ("-c", "import sys; from mlxcel_trio.cli import serve_main; sys.exit(serve_main())")

# Without settings, and with the buffered output that a pipe has by default.
BARE_ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("MLXCEL_") and name != "PYTHONUNBUFFERED"
}


def run(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**BARE_ENVIRONMENT, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("command", [MLXCEL, SERVE, (*MLXCEL, "pull"), MLXCEL_SERVER])
def test_help(command: tuple[str, ...]) -> None:
    started = time.perf_counter()
    ended = run(*command, "--help")
    print(f"--help took {time.perf_counter() - started:.3f} s with the interpreter's start")  # noqa: T201
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: mlxcel")


def test_mlxcel_server_is_mlxcel_serve_flag_for_flag() -> None:
    flags = [re.findall(r"--[a-z-]+", run(*command, "--help").stdout) for command in (SERVE, MLXCEL_SERVER)]
    assert flags[0] == flags[1]
    assert {setting.flag for setting in settings_of(Settings)} <= set(flags[0])


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("pull", "--help"), ("--version",)])
def test_flags_are_answered_without_heavy_imports(arguments: tuple[str, ...]) -> None:
    imported = run("-X", "importtime", *MLXCEL, *arguments).stderr
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in imported.splitlines()}
    assert {"mlxcel_trio", "argparse"} <= modules
    heavy = {
        "mlx",
        "mlx_lm",
        "transformers",
        "tokenizers",
        "numpy",
        "quart",
        "hypercorn",
        "trio",
        "structlog",
    }
    assert not modules & heavy


def test_version() -> None:
    ended = run(*MLXCEL, "--version")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    try:
        metadata.version("mlxcel-trio")
    except metadata.PackageNotFoundError:
        assert ended.returncode == 2
        assert "is not installed" in ended.stderr
    else:
        assert (ended.returncode, ended.stdout) == (0, f"mlxcel {project['version']}\n")


@pytest.mark.parametrize("command", [SERVE, MLXCEL_SERVER])
@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        (("--port", "65536"), {}, "--port must be "),
        (("--ctx-size", "0"), {}, "--ctx-size must be "),
        (("--top-p",), {}, "--top-p: expected one argument"),
        (("--tools", "x"), {}, "unrecognized arguments: --tools x"),
        (("a\nb",), {}, "unrecognized arguments: a b"),
        (
            ("--responses-background-ephemeral-ttl-secs", "0"),
            {},
            "--responses-background-ephemeral-ttl-secs must be a whole number of at least 1, not '0'.",
        ),
        ((), {"MLXCEL_PARALLEL": "0"}, "MLXCEL_PARALLEL must be "),
        ((), {"MLXCEL_API_KEY": ""}, "MLXCEL_API_KEY must be "),
        (("--api-key-file", "/no/such/file"), {}, "--api-key-file '/no/such/file' cannot be read: "),
    ],
)
def test_bad_configuration_exits_2_with_one_line(
    command: tuple[str, ...], arguments: tuple[str, ...], environ: dict[str, str], named: str
) -> None:
    ended = run(*command, *arguments, environ=environ)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"mlxcel: error: {named}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "a command is required"),
        (("frobnicate",), "command: invalid choice: 'frobnicate'"),
        (("--frobnicate",), "unrecognized arguments: --frobnicate"),
        (("pull", "a", "b"), "unrecognized arguments: b"),
        (("pull", "--port", "1"), "unrecognized arguments: --port"),
    ],
)
def test_wrong_commands_exit_2_with_one_line(arguments: tuple[str, ...], named: str) -> None:
    ended = run(*MLXCEL, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"mlxcel: error: {named}")
    assert ended.stderr.count("\n") == 1


def test_pull_prints_the_place_of_the_model() -> None:
    ended = run(*MLXCEL, "pull", str(TINY_MODEL))
    assert (ended.returncode, ended.stdout) == (0, f"{TINY_MODEL}\n")


@pytest.mark.parametrize("command", [(*MLXCEL, "pull"), (*SERVE, "--port", "0", "--model")])
def test_a_model_that_is_not_there_exits_1_with_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = run(*command, str(tmp_path / "none"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"'{tmp_path}/none'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("mlxcel: error: ")


def fail_with(error: BaseException) -> int:
    def command() -> None:
        raise error

    return exit_code_of(command)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigurationError("bad flag"), 2, "mlxcel: error: bad flag"),
        (ModelNotFoundError("no model"), 1, "mlxcel: error: no model"),
        (DownloadError("two\n lines"), 1, "mlxcel: error: two lines"),
        (OSError(98, "Address already in use"), 1, "mlxcel: error: [Errno 98] Address already in use"),
        (KeyboardInterrupt(), 130, "mlxcel: interrupted"),
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_error_is_one_line_however_deep_in_groups(
    error: BaseException, code: int, line: str, depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(depth):
        error = BaseExceptionGroup("unhandled errors in a nursery", [error])
    assert fail_with(error) == code
    assert capsys.readouterr() == ("", f"{line}\n")


def test_an_interrupt_outweighs_what_it_broke(capsys: pytest.CaptureFixture[str]) -> None:
    group = BaseExceptionGroup("", [ModelNotFoundError("x"), BaseExceptionGroup("", [KeyboardInterrupt()])])
    assert fail_with(group) == 130
    assert capsys.readouterr().err == "mlxcel: interrupted\n"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), ExceptionGroup("", [ModelNotFoundError("x"), ZeroDivisionError()])]
)
def test_a_defect_keeps_its_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)) as caught:
        fail_with(error)
    assert caught.value is error
    assert capsys.readouterr() == ("", "")


def test_success_is_0() -> None:
    assert exit_code_of(lambda: None) == 0


SERVER = """
import gc, sys, threading, trio, trio.testing
from mlxcel_trio import cli
from mlxcel_trio.cli import exit_code_of, run_server
from mlxcel_trio.errors import EngineFailureError

cli.STOP_SECONDS = 0.2

def tell(state):
    print(state, file=sys.stderr, flush=True)

async def serve(*, shutdown, task_status):
    mode = sys.argv[1]
    if mode == "never":
        tell("loading")
        await trio.sleep_forever()
    if mode == "hangs at once":
        tell("loading")
        await trio.to_thread.run_sync(threading.Event().wait)
    if mode == "fails":
        raise EngineFailureError("the engine did not start")
    task_status.started("http://127.0.0.1:1")
    await trio.testing.wait_all_tasks_blocked()
    if mode == "breaks":
        raise EngineFailureError("the engine stopped")
    if mode == "counts":
        tell(f"{gc.get_freeze_count() > 10_000} {len(gc.get_objects()) < 1000}")
    tell("serving")
    await shutdown.wait()
    if mode == "lingers":
        tell("stopping")
        await trio.sleep_forever()
    if mode == "hangs":
        tell("hanging")
        await trio.to_thread.run_sync(threading.Event().wait)

sys.exit(exit_code_of(lambda: run_server(serve, graceful_timeout=float(sys.argv[2]))))
"""


def start(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=BARE_ENVIRONMENT, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def start_server(
    mode: str, *, graceful_timeout: float = 30, stdout: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    return start("-c", SERVER, mode, str(graceful_timeout), stdout=stdout)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


each_signal = pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])


@each_signal
def test_a_server_prints_its_url_alone_and_ends_with_0(stop: signal.Signals) -> None:
    with start_server("serves") as process:
        assert read_line(process) == "serving\n"
        process.send_signal(stop)
        assert process.communicate(timeout=30) == ("http://127.0.0.1:1\n", "")
    assert process.returncode == 0


@each_signal
def test_a_signal_before_serving_ends_with_130(stop: signal.Signals) -> None:
    with start_server("never") as process:
        assert read_line(process) == "loading\n"
        process.send_signal(stop)
        assert process.communicate(timeout=30) == ("", "mlxcel: interrupted\n")
    assert process.returncode == 130


@each_signal
def test_a_second_signal_ends_at_once_with_130(stop: signal.Signals) -> None:
    with start_server("lingers") as process:
        assert read_line(process) == "serving\n"
        process.send_signal(signal.SIGTERM)
        assert read_line(process) == "stopping\n"
        process.send_signal(stop)
        assert process.communicate(timeout=30) == ("http://127.0.0.1:1\n", "mlxcel: interrupted\n")
    assert process.returncode == 130


def test_what_was_loaded_is_no_concern_of_the_garbage_collector() -> None:
    with start_server("counts") as process:
        assert read_line(process) == "True True\n"
        assert read_line(process) == "serving\n"
        process.terminate()
        process.communicate(timeout=30)


def assert_gave_up(process: subprocess.Popen[str]) -> None:
    printed, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "engine_hangs" in printed + told
    assert "Traceback" not in told


def test_a_thread_that_hangs_past_the_grace_period_is_left_behind() -> None:
    with start_server("hangs", graceful_timeout=0.1) as process:
        assert read_line(process) == "serving\n"
        process.send_signal(signal.SIGTERM)
        assert read_line(process) == "hanging\n"
        assert_gave_up(process)


def test_a_second_signal_ends_the_wait_for_a_thread_that_hangs() -> None:
    with start_server("hangs", graceful_timeout=3600) as process:
        assert read_line(process) == "serving\n"
        process.send_signal(signal.SIGTERM)
        assert read_line(process) == "hanging\n"
        process.send_signal(signal.SIGTERM)
        assert_gave_up(process)


def test_a_thread_that_hangs_before_serving_is_left_behind() -> None:
    with start_server("hangs at once", graceful_timeout=3600) as process:
        assert read_line(process) == "loading\n"
        process.send_signal(signal.SIGTERM)
        assert_gave_up(process)


@pytest.mark.parametrize(
    ("mode", "printed", "told"),
    [
        ("fails", "", "mlxcel: error: the engine did not start\n"),
        ("breaks", "http://127.0.0.1:1\n", "mlxcel: error: the engine stopped\n"),
    ],
)
def test_a_server_that_fails_ends_with_1(mode: str, printed: str, told: str) -> None:
    with start_server(mode) as process:
        assert process.communicate(timeout=30) == (printed, told)
    assert process.returncode == 1


def test_a_server_outlives_the_reader_of_its_output() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with start_server("serves", stdout=writer) as process:
        os.close(writer)
        assert read_line(process) == "serving\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0


def test_help_into_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with start(*SERVE, "--help", stdout=writer) as process:
        os.close(writer)
        assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0
