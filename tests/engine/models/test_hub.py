"""Fetching from the hub, killed in between: a local hub, the real client, a process for each fetch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gguf_files import tiny_llama
from support.hub import Files, HeldFile, etag, serve_hub
from support.processes import line_of, python, running

from mlxcel_trio.engine.models.directory import check_model_directory
from mlxcel_trio.engine.models.gguf import open_gguf, plan_conversion

if TYPE_CHECKING:
    import subprocess

REPOSITORY = "org/tiny"
WEIGHTS = "model.safetensors"
PATIENCE_SECONDS = 60

# Prints the first word of each report, then the directory.
RESOLVE = """
import sys
from pathlib import Path
from mlxcel_trio.engine.models import resolve_model

report = lambda line: print(line.split()[0], flush=True)
print(resolve_model(sys.argv[1], cache_dir=Path(sys.argv[2]), report=report).directory, flush=True)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    directory = tmp_path / "made"
    directory.mkdir()
    with open_gguf(tiny_llama("Q4_1").write(tmp_path / "source.gguf")) as file:
        plan_conversion(file).write(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a process that fetches the repository into the hub's cache ``tmp_path / cache``."""

    def start(cache: str, **environ: str) -> subprocess.Popen[str]:
        own = {
            "HF_HOME": str(tmp_path),
            "HF_HUB_CACHE": str(tmp_path / cache),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "*",
        }
        return python(RESOLVE, REPOSITORY, tmp_path / "unused", environ=own | environ)

    return start


def fetched(process: subprocess.Popen[str]) -> Path:
    with running(process):
        assert line_of(process) == "Looking"
        return Path(line_of(process))


def contents(directory: Path) -> dict[str, int]:
    """Sizes by path, without the empty files that the client leaves when it is killed while it probes."""
    sizes = {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("*")}
    return {path: size for path, size in sizes.items() if size and (directory / path).is_file()}


def bytes_of(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_kills_in_the_middle_of_a_file(tmp_path: Path, files: Files, start: Start) -> None:
    repositories = {REPOSITORY: files}
    half_made = f"models--org--tiny/blobs/{etag(files[WEIGHTS])}.*.incomplete"
    for _ in range(2):
        held = HeldFile(WEIGHTS)
        with (
            serve_hub(repositories, held=held) as endpoint,
            running(start("killed", HF_ENDPOINT=endpoint)) as process,
        ):
            assert held.half_sent.wait(PATIENCE_SECONDS)
            process.kill()
            process.wait()
        assert len(list((tmp_path / "killed").glob(half_made))) == 1, "the last kill's and no other"
        assert not list((tmp_path / "killed").rglob(WEIGHTS))

    with running(start("killed", HF_HUB_OFFLINE="1")) as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "DownloadError" in errors.splitlines()[-1]

    with serve_hub(repositories) as endpoint:
        directory = fetched(start("killed", HF_ENDPOINT=endpoint))
        fetched(start("untroubled", HF_ENDPOINT=endpoint))
    check_model_directory(directory)
    assert bytes_of(directory) == files
    assert contents(tmp_path / "killed") == contents(tmp_path / "untroubled")


def test_what_another_process_is_fetching_is_left_alone(tmp_path: Path, files: Files, start: Start) -> None:
    held = HeldFile(WEIGHTS)
    with (
        serve_hub({REPOSITORY: files}, held=held) as endpoint,
        running(start("shared", HF_ENDPOINT=endpoint)) as first,
    ):
        assert line_of(first) == "Looking"
        assert held.half_sent.wait(PATIENCE_SECONDS)
        with running(start("shared", HF_ENDPOINT=endpoint)) as second:
            assert line_of(second) == "Looking"
            held.release.set()
            directory = Path(line_of(first))
            assert line_of(second) == str(directory)
    assert bytes_of(directory) == files
    assert not list((tmp_path / "shared").rglob("*.incomplete"))


def test_half_files_that_may_be_wanted_stay(tmp_path: Path, files: Files, start: Start) -> None:
    """One without a lock may be anybody's; one with a plain name is resumed by older clients."""
    with serve_hub({REPOSITORY: files}) as endpoint:
        fetched(start("cache", HF_ENDPOINT=endpoint))
        (tmp_path / "cache" / ".locks" / "models--org--tiny" / "older.lock").touch()
        blobs = tmp_path / "cache" / "models--org--tiny" / "blobs"
        half_files = [blobs / "unlocked.01234567.incomplete", blobs / "older.incomplete"]
        for half_file in half_files:
            half_file.touch()
        fetched(start("cache", HF_ENDPOINT=endpoint))
    assert all(half_file.exists() for half_file in half_files)
