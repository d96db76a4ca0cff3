"""The model cache: finished or absent, whatever happens in between."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from support.gguf_files import tiny_llama
from support.processes import line_of, python, running, tell

from mlxcel_trio.engine.models.cache import CacheEntry, cache_directory, find, provide
from mlxcel_trio.errors import ConfigurationError, CorruptModelError, DownloadError

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY = CacheEntry("tiny", "v1")


def build(directory: Path) -> None:
    (directory / "file").write_text("made")


def make(cache_dir: Path, builder: Callable[[Path], None] = build, entry: CacheEntry = ENTRY) -> Path:
    return provide(cache_dir, entry, builder, needed_bytes=1000, report=lambda line: None)


def contents(cache_dir: Path) -> list[str]:
    """Everything in the cache but the lock."""
    models = cache_dir / "models"
    return sorted(str(path.relative_to(models)) for path in models.rglob("*") if path.name != ".lock")


def raising(error: BaseException) -> Callable[[Path], None]:
    def builder(directory: Path) -> None:
        build(directory)
        raise error

    return builder


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MLXCEL_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/mlxcel"),
        ({"XDG_CACHE_HOME": "relative"}, "~/.cache/mlxcel"),
        ({"XDG_CACHE_HOME": ""}, "~/.cache/mlxcel"),
        ({"MLXCEL_CACHE_DIR": ""}, "~/.cache/mlxcel"),
        ({"MLXCEL_CACHE_DIR": "~/models"}, "~/models"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str) -> None:
    assert cache_directory(environ) == Path(expected).expanduser()


def test_a_relative_cache_directory_is_made_absolute() -> None:
    assert cache_directory({"MLXCEL_CACHE_DIR": "here"}) == Path.cwd() / "here"


def test_no_home_directory_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(ConfigurationError, match="MLXCEL_CACHE_DIR"):
        cache_directory({})


def test_a_model_is_made_once(tmp_path: Path) -> None:
    assert find(tmp_path, ENTRY) is None
    made = make(tmp_path)
    assert (made / "file").read_text() == "made"
    assert find(tmp_path, ENTRY) == made
    assert make(tmp_path, raising(AssertionError("built twice"))) == made
    assert contents(tmp_path) == ["tiny", "tiny/v1", "tiny/v1/file"]


def test_a_new_version_replaces_the_old_one(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path, entry=CacheEntry("other", "v1"))
    make(tmp_path, entry=CacheEntry("tiny", "v2"))
    assert contents(tmp_path) == ["other", "other/v1", "other/v1/file", "tiny", "tiny/v2", "tiny/v2/file"]


@pytest.mark.parametrize("error", [CorruptModelError("bad"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_failed_build_leaves_nothing_and_its_error_passes(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        make(tmp_path, raising(error))
    assert contents(tmp_path) == []
    make(tmp_path)


def test_a_failed_new_version_keeps_the_old_one(tmp_path: Path) -> None:
    made = make(tmp_path)
    with pytest.raises(CorruptModelError):
        make(tmp_path, raising(CorruptModelError("bad")), CacheEntry("tiny", "v2"))
    assert find(tmp_path, ENTRY) == made


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up(tmp_path: Path, number: int) -> None:
    with pytest.raises(DownloadError) as caught:
        provide(
            tmp_path,
            ENTRY,
            raising(OSError(number, "full")),
            needed_bytes=93_000_000,
            report=lambda line: None,
        )
    assert str(tmp_path) in str(caught.value)
    assert "93 MB" in str(caught.value)
    assert contents(tmp_path) == []


def test_a_disk_that_fills_up_when_files_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DownloadError, match="no room"):
            make(tmp_path)
    assert contents(tmp_path) == []


def test_too_little_room_is_noticed_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(4_000_000_000))
    with pytest.raises(DownloadError, match=r"4\.1 GB"):
        provide(
            tmp_path,
            ENTRY,
            raising(AssertionError("built")),
            needed_bytes=4_100_000_000,
            report=lambda line: None,
        )
    assert contents(tmp_path) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError) as caught:
        make(tmp_path / "file")
    message = str(caught.value)
    assert str(tmp_path / "file") in message
    assert "MLXCEL_CACHE_DIR" in message
    assert "\n" not in message


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "models" / ".partial-abc" / "v1"
    leftover.mkdir(parents=True)
    build(leftover)
    make(tmp_path)
    assert contents(tmp_path) == ["tiny", "tiny/v1", "tiny/v1/file"]


def test_scraps_beside_a_finished_model_are_removed_unless_someone_is_at_work(tmp_path: Path) -> None:
    made = make(tmp_path)
    scraps = tmp_path / "models" / ".partial-abc"
    scraps.mkdir()

    def builder(directory: Path) -> None:
        assert find(tmp_path, ENTRY) == made
        build(directory)

    make(tmp_path, builder, CacheEntry("other", "v1"))
    assert not scraps.exists()
    scraps.mkdir()
    assert find(tmp_path, ENTRY) == made
    assert not scraps.exists()


# Prints what happens; a build begins with "building" and goes on when it is told to.
PROVIDE = """
import sys
from pathlib import Path
from mlxcel_trio.engine.models.cache import CacheEntry, provide

def build(directory):
    (directory / "file").write_text("half")
    print("building", flush=True)
    sys.stdin.readline()
    (directory / "file").write_text("made")

report = lambda line: print(line.split()[0], flush=True)
print(provide(Path(sys.argv[1]), CacheEntry("tiny", "v1"), build, needed_bytes=1, report=report), flush=True)
"""


def test_two_processes_make_it_once(tmp_path: Path) -> None:
    with running(python(PROVIDE, tmp_path)) as first, running(python(PROVIDE, tmp_path)) as second:
        lines = [line_of(first), line_of(second)]
        assert sorted(lines) == ["Waiting", "building"]
        builder, waiter = (first, second) if lines[0] == "building" else (second, first)
        tell(builder)
        # Had the waiter built too, it would have said so before the result.
        assert line_of(builder) == line_of(waiter) == str(tmp_path / "models" / "tiny" / "v1")
    assert contents(tmp_path) == ["tiny", "tiny/v1", "tiny/v1/file"]


def test_a_waiting_process_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    with running(python(PROVIDE, tmp_path)) as first:
        assert line_of(first) == "building"
        with running(python(PROVIDE, tmp_path)) as second:
            assert line_of(second) == "Waiting"
            first.kill()
            assert line_of(second) == "building"
            tell(second)
            made = Path(line_of(second))
    assert (made / "file").read_text() == "made"
    assert contents(tmp_path) == ["tiny", "tiny/v1", "tiny/v1/file"]


def test_an_interrupt_removes_the_work(tmp_path: Path) -> None:
    with running(python(PROVIDE, tmp_path)) as process:
        assert line_of(process) == "building"
        process.send_signal(signal.SIGINT)
        process.wait()
    assert contents(tmp_path) == []


# Converts a GGUF file again and again, killed at its first, second, ... file operation, until a run
# gets through. After each kill the cache must hold a complete model or none, and a further run must
# finish and clean up. Prints the number of kills.
KILL_AT_EVERY_STEP = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from mlxcel_trio.engine.models import resolve_model
from mlxcel_trio.engine.models.directory import check_model_directory

gguf, cache = Path(sys.argv[1]), Path(sys.argv[2])
STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "fcntl.flock"}

def convert(kill_at):
    seen = itertools.count(1)
    def on_event(event, arguments):
        if event in STEPS and next(seen) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(on_event)
    resolve_model(str(gguf), cache_dir=cache, report=lambda line: None)

def run(kill_at):
    child = os.fork()
    if child == 0:
        convert(kill_at)
        os._exit(0)
    return os.waitpid(child, 0)[1]

for step in itertools.count(1):
    shutil.rmtree(cache, ignore_errors=True)
    status = run(kill_at=step)
    for model in cache.glob("models/[!.]*/*"):
        check_model_directory(model)
    assert run(kill_at=0) == 0, step
    models = list(cache.glob("models/[!.]*/*"))
    assert len(models) == 1 and not list(cache.glob("models/.partial-*")), step
    check_model_directory(models[0])
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, step
print(step - 1)
"""


def test_a_kill_at_any_step_leaves_nothing_half_made(tmp_path: Path) -> None:
    gguf = tiny_llama().write(tmp_path / "tiny.gguf")
    with running(python(KILL_AT_EVERY_STEP, gguf, tmp_path / "cache")) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert int(output) > 15
