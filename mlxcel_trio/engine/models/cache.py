"""The directory for models that were fetched or converted, safe against kills and second processes.

::

    <cache>/models/<name>/<version>/   a finished model: it appears in one rename and never changes
    <cache>/models/.partial-*/         the work of a running process, or what a killed one left
    <cache>/models/.lock               held while something is made

One process at a time makes something; whoever gets the lock removes what killed ones left. A finished
model is found without the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mlxcel_trio.errors import ConfigurationError, DownloadError

Report = Callable[[str], None]
"""Takes one line for the user."""

_PARTIAL_PREFIX = ".partial-"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A place in the cache. Making one version of a name removes the other versions of that name."""

    name: str
    version: str


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``MLXCEL_CACHE_DIR``, else ``mlxcel`` under ``XDG_CACHE_HOME``, else under ``~/.cache``.

    Raises ``ConfigurationError`` when there is neither a variable nor a home directory.
    """
    try:
        if own := environ.get("MLXCEL_CACHE_DIR"):
            return Path(own).expanduser().absolute()
        # The XDG specification has relative paths ignored.
        shared = Path(environ.get("XDG_CACHE_HOME", ""))
        return (shared if shared.is_absolute() else Path("~/.cache").expanduser()) / "mlxcel"
    except RuntimeError as error:
        raise ConfigurationError("there is no home directory: set MLXCEL_CACHE_DIR") from error


def find(cache_dir: Path, entry: CacheEntry) -> Path | None:
    """The finished model, if it is there."""
    directory = _entry_directory(cache_dir, entry)
    if not directory.is_dir():
        return None
    # One that was killed just after it had finished left its scraps.
    models = cache_dir / "models"
    if any(models.glob(_PARTIAL_PREFIX + "*")):
        with suppress(OSError), (models / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_leftovers(models)
    return directory


def provide(
    cache_dir: Path, entry: CacheEntry, build: Callable[[Path], None], *, needed_bytes: int, report: Report
) -> Path:
    """The finished model, made by ``build`` unless it is there.

    ``build`` fills the empty directory it is given, on the same disk. Whatever ends it, an exception,
    ``KeyboardInterrupt`` or a kill, nothing appears under the entry's path. A second process waits for
    the first and then finds its result. ``needed_bytes`` is what ``build`` occupies at its peak.

    Raises ``DownloadError`` when the directory cannot be written or has no room; errors of the package
    that ``build`` raises pass through.
    """
    finished = _entry_directory(cache_dir, entry)
    with _disk_errors(cache_dir, entry, needed_bytes):
        models = cache_dir / "models"
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models, report):
            _remove_leftovers(models)
            if finished.is_dir():
                return finished
            if shutil.disk_usage(models).free < needed_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with tempfile.TemporaryDirectory(prefix=_PARTIAL_PREFIX, dir=models) as partial:
                work = Path(partial) / entry.version
                work.mkdir()
                build(work)
                _flush(work)
                finished.parent.mkdir(exist_ok=True)
                work.rename(finished)
            _remove_others(finished)
    return finished


def size_in_words(nbytes: int) -> str:
    """``93 MB``, ``4.1 GB``: decimal units, as disks are sold."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{max(1, round(nbytes / 1e6))} MB"


def _entry_directory(cache_dir: Path, entry: CacheEntry) -> Path:
    return cache_dir / "models" / entry.name / entry.version


@contextmanager
def _locked(models: Path, report: Report) -> Iterator[None]:
    """Hold the one lock of this cache; the kernel releases it when the process dies."""
    with (models / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"Waiting for another process that is preparing a model in {models}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(models: Path) -> None:
    # Under the lock no other process has work in progress.
    for leftover in models.glob(_PARTIAL_PREFIX + "*"):
        # An orphaned pip may still write there; what it adds now, the next run removes.
        shutil.rmtree(leftover, ignore_errors=True)


def _remove_others(finished: Path) -> None:
    for other in finished.parent.iterdir():
        if other != finished:
            # A process that loaded it has it in memory; one that fails to remove it loses only space.
            shutil.rmtree(other, ignore_errors=True)


def _flush(directory: Path) -> None:
    """Bring every file to the disk, so that a power cut cannot leave a finished name with empty files."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextmanager
def _disk_errors(cache_dir: Path, entry: CacheEntry, needed_bytes: int) -> Iterator[None]:
    """Turn what the disk says into a line that names the directory and the way out."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            problem = f"has no room for {entry.name}: {size_in_words(needed_bytes)} are needed, free some"
        else:
            problem = f"cannot be written ({error.strerror or error}): make it writable"
        raise DownloadError(f"the cache {cache_dir} {problem} or set MLXCEL_CACHE_DIR") from error
